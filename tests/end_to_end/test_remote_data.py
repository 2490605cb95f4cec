"""Training from places on the network, through the command line."""

from __future__ import annotations

import io
import json
import random
import signal
import time
from collections import deque
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.bootstrap.cli.main import main
from tests.support.command_line import WORDS, Hold, losses, run, start, tiny, wait_for_checkpoint
from tests.support.faulty_server import Answer, Fault, faulty_server
from tests.support.s3_server import s3_server

FOLDER = Path("runs/default")
QUICK = ("data.retry.deadline_seconds=0.5", "evaluation.at_start=false", "monitors=[jsonl]")
PATIENT = ("data.retry.deadline_seconds=100",)  # so that what is sound is found so on a busy machine too


def texts(seed, count=60):
    generator, words = random.Random(seed), WORDS.split()
    return [" ".join(generator.choices(words, k=generator.randrange(20, 200))) for _ in range(count)]


def parquet(seed):
    content = io.BytesIO()
    pq.write_table(pa.table({"text": texts(seed)}), content, row_group_size=20)
    return content.getvalue()


def jsonl(seed):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts(seed)).encode()


@pytest.fixture(scope="module")
def s3():
    with s3_server("remote") as server:
        for number in range(3):
            server.put(f"corpus/{number}.parquet", parquet(number))
        server.put("texts/a.jsonl", jsonl(0))
        server.put("texts/b.jsonl", jsonl(1))
        fsspec.filesystem("s3").ls("remote")  # a first client may take longer than a hasty run waits
        yield server


@pytest.fixture(autouse=True)
def calm(s3):
    """Let the server serve well again after each test."""
    answer = s3.proxy.answer
    yield
    s3.proxy.answer = answer
    s3.proxy.behave()


def refuse(server, status, key="", command="GET", times=10**6):
    """Make the server answer ``status`` for the next ``times`` requests whose path holds ``key``."""
    serve, left = server.answer, iter(range(times))

    def answer(handler, body):
        if handler.command == command and key in handler.path and next(left, None) is not None:
            return Answer(status, {}, b"")
        return serve(handler, body)

    server.answer = answer


def final_weights(home):
    return (home / FOLDER / "checkpoints/checkpoint-30/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["stream", "cache"])
def test_a_run_from_s3_survives_kill_nine(s3, tmp_path, monkeypatch, mode):
    """Killed in mid-run, a run that reads Parquet from S3 ends with the bytes and losses of an undisturbed one."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for home in (undisturbed, killed):
        home.mkdir()

    def settings(home):
        return tiny(home / "x", "data.path=s3://remote/corpus/*.parquet", f"data.mode={mode}", "evaluation.every=0")

    monkeypatch.chdir(undisturbed)
    assert main(["train", *settings(undisturbed)]) == 0
    hold = Hold(tmp_path)
    hold.behind(9)
    process = start("train", *settings(killed), hold.settings, cwd=killed)
    wait_for_checkpoint(killed / FOLDER, 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    s3.proxy.faults = deque([Fault(status=503), None, Fault(status=503)])
    resumed = run("train", *settings(killed), cwd=killed)
    assert resumed.returncode == 0, resumed.stderr
    assert not s3.proxy.faults
    events = [json.loads(line) for line in (killed / FOLDER / "events.jsonl").read_text().splitlines()]
    assert [0 < event["step"] < 30 for event in events if event["event"] == "RunStarted"] == [False, True]
    assert final_weights(killed) == final_weights(undisturbed)
    assert losses(killed / FOLDER) == losses(undisturbed / FOLDER)


@pytest.fixture
def train(tmp_path, monkeypatch, capfd):
    """Return a function that trains with further settings and returns the exit code and what was said."""
    monkeypatch.chdir(tmp_path)

    def train_with(*more):
        code = main(["train", *tiny(tmp_path / "x", *QUICK, *more)])
        said = capfd.readouterr()
        return code, said.out + said.err

    return train_with


def complaint(said):
    """Return the one line that says what is wrong."""
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("s3://remote/texts/*.jsonl", 403, "check data.path and your access to it"),
        ("s3://remote/texts", 403, "check data.path and your access to it"),
        ("s3://remote/texts/*.jsonl", 503, "check data.path and your access to it"),
        ("s3://nowhere/texts/*.jsonl", None, "bucket does not exist"),
        ("s3://nowhere/a.jsonl", None, "bucket does not exist"),
        ("s3://remote/none/*.jsonl", None, "no file matches"),
        ("s3://remote/texts/none.jsonl", None, "there is no file or folder"),
    ],
)
def test_a_place_that_cannot_be_listed_exits_with_three(s3, train, path, status, named):
    """No rights, a bucket or key that is not there and a server that stays busy: one sentence with the path, code 3."""
    if status:
        refuse(s3.proxy, status, "list-type")
    began = time.monotonic()
    code, said = train(f"data.path={path}", *(() if status == 503 else PATIENT))
    assert code == 3
    assert path in complaint(said)
    assert named in complaint(said)
    assert time.monotonic() - began < 60, "what cannot pass is tried again, or what can for too long"


@pytest.mark.parametrize("mode", ["stream", "cache"])
def test_a_key_that_vanished_exits_with_three(s3, train, mode):
    """A key that was listed and is not there when it is read ends the run in one sentence that names it."""
    refuse(s3.proxy, 404, "texts/b.jsonl")
    code, said = train("data.path=s3://remote/texts/*.jsonl", f"data.mode={mode}", *PATIENT)
    assert code == 3
    assert "s3://remote/texts/b.jsonl cannot be read (it was removed since it was listed)" in complaint(said)


@pytest.mark.parametrize(("path", "command"), [("texts/a.jsonl", "HEAD"), ("texts/*.jsonl", "GET"), ("texts", "GET")])
def test_what_fails_while_files_are_listed_is_asked_again(s3, train, path, command):
    """A server that is busy for some requests, whichever ones, is asked again, and no file is missing from the run."""
    code, said = train(f"data.path=s3://remote/{path}", "run.budget.steps=2", "run.name=calm", *PATIENT)
    assert code == 0, said
    refuse(s3.proxy, 503, command=command, times=2)
    code, said = train(f"data.path=s3://remote/{path}", "run.budget.steps=2", "run.name=busy", *PATIENT)
    assert code == 0, said
    assert losses(Path("runs/busy")) == losses(Path("runs/calm"))


def test_http_that_is_busy_is_asked_again_and_one_that_refuses_is_named(train):
    """What fsspec calls a file not found on HTTP is told apart: 503 passes, 403 is no access, 404 no file."""
    with faulty_server(files={"/a.jsonl": jsonl(0)}) as web:
        path = f"data.path={web.url}/a.jsonl"
        serve = web.answer
        for command in ("GET", "HEAD"):
            refuse(web, 503, command=command, times=1)
        assert train(path, "run.budget.steps=2", *PATIENT)[0] == 0
        soon = ("data.retry.deadline_seconds=3",)
        for status, named, limit in (
            (403, "403", PATIENT),
            (503, "503", soon),
            (404, "there is no file or folder", PATIENT),
        ):
            web.answer = serve
            for command in ("GET", "HEAD"):
                refuse(web, status, command=command)
            code, said = train(path, "run.name=refused", *limit)
            assert code == 3
            assert named in complaint(said)


def test_secrets_are_written_nowhere(s3, train, tmp_path, monkeypatch):
    """Keys in a URL and in the environment stand in no file of the run or the cache, and in nothing that is said."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAHUSHHUSH")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush/hush+key")
    with faulty_server(files={"/a.jsonl": jsonl(0) + b"{bad\n"}) as web:
        place = web.url.replace("://", "://me:hush@")
        signed = f"{place}/a.jsonl?X-Amz-Credential=AKIAhush&part=1&X-Amz-Signature=hush/hush"
        paths = f"data.path=[{signed!r}, 's3://remote/texts/*.jsonl']"
        code, said = train(paths, "data.on_error=skip", "run.budget.steps=2", "monitors=[console, jsonl]", *PATIENT)
        assert code == 0, said
        assert "one JSON object" in (tmp_path / FOLDER / "rejected.jsonl").read_text()
        refuse(web, 403)
        refuse(s3.proxy, 503)
        for number, path in enumerate((paths, f"data.path={signed}", "data.path=s3://remote/texts/*.jsonl")):
            code, complained = train(path, f"run.name=refused-{number}", "data.mode=stream")
            assert code == 3, complained
            said += complained
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "events.jsonl", "rejected.jsonl"} <= {path.name for path in files}
    assert [path for path in files if b"hush" in path.read_bytes().lower()] == []
    assert "hush" not in said.lower()
