"""`prepare` on the command line: what it leaves, what it says, and how it ends when it cannot."""

from __future__ import annotations

import json
import os
import resource
import subprocess

import numpy as np
import pytest

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from tests.support.command_line import corpus, run_here, tiny


def stored(cache):
    """Return the bytes and the time of each file of tokens below ``cache``."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(cache.glob("tokens/*/*/*.bin"))}


def datasets(cache):
    return {path.parent.parent.name for path in cache.glob("tokens/*/*/manifest.json")}


def said_once(result):
    """Return the one line that standard error ends with."""
    *_, last = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    assert last.startswith("error: ")
    return last


def test_what_is_prepared_once_is_there_for_all_who_come(tmp_path):
    """A second `prepare` makes nothing, `train` tokenizes nothing, and other settings get a cache of their own."""
    path, cache = corpus(tmp_path), tmp_path / "cache"
    first = run_here("prepare", *tiny(path), cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "of 120 documents" in first.stdout
    assert "of them new" in first.stdout
    made = stored(cache)
    again = run_here("prepare", *tiny(path), cwd=tmp_path)
    assert (again.returncode, "there already" in again.stdout) == (0, True), again.stderr
    trained = run_here("train", *tiny(path, "data.mode=cache", "run.budget.steps=2"), cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "million a second" not in trained.stderr
    assert stored(cache) == made
    [kept] = datasets(cache)
    other = run_here("prepare", *tiny(path, "tokenizer.vocabulary_size=310"), cwd=tmp_path)
    assert (other.returncode, len(datasets(cache))) == (0, 2), other.stderr
    assert kept in datasets(cache)
    assert made.items() <= stored(cache).items()


def test_the_command_that_prepare_proposes_is_the_one_to_run(tmp_path):
    """The line to try next names the same files of settings, and a shell reads each setting as one word."""
    path = corpus(tmp_path)
    (tmp_path / "of mine.yaml").write_text("data:\n  sequence_length: 32\n")
    setting = "data.transforms=[{kind: length, options: {min_characters: 3}}]"
    result = run_here("prepare", "--config", "of mine.yaml", *tiny(path, setting), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    proposed = next(line for line in result.stdout.splitlines() if line.startswith("try next:"))
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {proposed.removeprefix('try next:')}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert words[:6] == ["python", "-m", "application", "train", "--config", "of mine.yaml"]
    assert setting in words
    short = ("run.budget.steps=1", "evaluation.at_start=false", "evaluation.every=0")
    trained = run_here(*words[3:], *short, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr


def test_rejected_records_are_told_and_are_no_pass_for_a_stricter_run(tmp_path):
    """`data.on_error=skip` shows what was left out, each time; without it the data end with code 3, cached or not."""
    path = corpus(tmp_path)
    with path.open("a") as file:
        file.write('{"no": 1}\n{broken\n')
    stopped = run_here("prepare", *tiny(path), cwd=tmp_path)
    assert (stopped.returncode, "data.on_error=skip" in said_once(stopped)) == (3, True)
    for _ in range(2):
        result = run_here("prepare", *tiny(path, "data.on_error=skip"), cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert "2 records left out" in result.stdout
        assert "2 unusable" in result.stdout
        assert "'text' is missing" in result.stdout
        assert "not JSON" in result.stdout
    stopped = run_here("prepare", *tiny(path), cwd=tmp_path)
    assert (stopped.returncode, "data.on_error=skip" in said_once(stopped)) == (3, True)


def test_tokens_need_no_preparing(tmp_path):
    """Data that are tokens already are refused with code 2 and a sentence."""
    np.save(tmp_path / "ids.npy", np.arange(100, dtype=np.uint16))
    result = run_here("prepare", "data.kind=tokens", f"data.path={tmp_path / 'ids.npy'}", cwd=tmp_path)
    assert (result.returncode, "data.kind=tokens" in said_once(result)) == (2, True)


def test_somebody_elses_folder_is_left_alone(tmp_path):
    """A cache folder that holds other files is refused with code 2, and nothing in it is touched."""
    path, folder = corpus(tmp_path), tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter-1.txt").write_text("precious")
    result = run_here("prepare", *tiny(path, f"data.cache.dir={folder}"), cwd=tmp_path)
    assert (result.returncode, str(folder) in said_once(result)) == (2, True)
    assert [(file.name, file.read_text()) for file in folder.iterdir()] == [("chapter-1.txt", "precious")]


def read_only(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    return folder / "tokens"


def below_a_file(tmp_path):
    return corpus(tmp_path) / "tokens"


@pytest.mark.parametrize("place", [read_only, below_a_file])
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, place):
    """Where no cache can be, `prepare` ends with code 4 and a sentence that names the place."""
    folder = place(tmp_path)
    if place is read_only and os.access(folder.parent, os.W_OK):
        pytest.skip("whoever runs this may write anywhere")
    result = run_here("prepare", *tiny(corpus(tmp_path), f"data.cache.dir={folder}"), cwd=tmp_path)
    assert (result.returncode, str(folder) in said_once(result)) == (4, True)


def test_a_full_disk_is_told_and_room_mends_it(tmp_path):
    """When no more can be written, `prepare` ends with code 4 and a sentence; with room the same command finishes."""
    path = corpus(tmp_path, documents=2000)
    assert path.stat().st_size > 10 * 100_000
    settings = tiny(path, "tokenizer.max_bytes=50000")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
    try:
        result = run_here("prepare", *settings, cwd=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert (result.returncode, str(tmp_path / "cache/tokens") in said_once(result)) == (4, True), result.stderr
    assert stored(tmp_path / "cache") == {}
    assert run_here("prepare", *settings, cwd=tmp_path).returncode == 0


class CountingTokenizer(ForwardingTokenizer):
    """Counts the documents that it encodes as bytes."""

    def __init__(self):
        super().__init__(MemoryTokenizer())
        self.encoded = []

    def encode(self, documents):
        self.encoded += documents
        return super().encode(documents)


def train(path, name, *more):
    """Train in a folder beside ``path``; return the texts that were tokenized, samples of the tokenizer among them."""
    tokenizer = CountingTokenizer()
    settings = tiny(path, f"run.dir={path.parent / name}", "monitors=[]", *more)
    build(load_settings([], settings, {}).settings, report=lambda _: None, tokenizer=tokenizer).run()
    return tokenizer.encoded


def test_a_run_on_prepared_data_tokenizes_only_what_it_holds_out(tmp_path):
    """The first run tokenizes each document once, and the second one none but the held-out ones."""
    path = corpus(tmp_path)
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    held = [text for text in texts if Holdout(0.1, 0).holds_text(text)]
    more = ("run.seed=0", "data.mode=cache", "run.budget.steps=2")
    assert 0 < len(held) < len(texts) / 2
    first, second = ([text for text in train(path, name, *more) if text in texts] for name in ("one", "two"))
    assert sorted(first) == sorted(texts + held)
    assert sorted(second) == sorted(held)


def test_what_decides_no_order_may_change_on_the_way(tmp_path):
    """A run that a bad record ended goes on with the remedy that the error names, and with other threads and places."""
    path = corpus(tmp_path, documents=12)
    with path.open("a") as file:
        file.write("{broken\n")
    settings = ("data.mode=stream", "data.epochs=1", "data.holdout=0", "run.budget.steps=1000")
    with pytest.raises(DataError, match=r"data\.on_error=skip"):
        train(path, "run", *settings)
    assert (tmp_path / "run/run.json").exists()
    more = (
        "data.on_error=skip",
        "data.workers=1",
        f"data.cache.dir={tmp_path / 'elsewhere'}",
        "data.cache.budget=9999",
    )
    train(path, "run", *settings, *more)
    assert len((tmp_path / "run/rejected.jsonl").read_text().splitlines()) == 1


def test_the_limit_of_rejected_records_may_change_on_the_way(tmp_path):
    """A run goes on with the remedy that its error names; another rule would make another run."""
    path = corpus(tmp_path, documents=12)
    settings = ("data.mode=stream", "data.holdout=0", "data.validation.max_rejected=0.4")
    train(path, "run", *settings, "data.validation.fields.id.min=6", "run.budget.steps=1")
    more = ("data.validation.max_rejected=1", "run.budget.steps=2")
    train(path, "run", *settings, "data.validation.fields.id.min=6", *more)
    assert len((tmp_path / "run/rejected.jsonl").read_text().splitlines()) == 6
    with pytest.raises(ConfigurationError, match=r"data\.validation\.fields\.id\.min was 6"):
        train(path, "run", *settings, "data.validation.fields.id.min=5", *more)


def test_a_run_may_be_compared_with_a_version_from_its_next_start_on(tmp_path):
    """data.drift is no part of a run's identity."""
    path = corpus(tmp_path, documents=12)
    train(path, "run", "data.mode=cache", "data.holdout=0", "run.budget.steps=2")
    [dataset] = datasets(tmp_path / "cache")
    train(path, "run", "data.mode=cache", "data.holdout=0", "run.budget.steps=4", f"data.drift.reference={dataset}")
    assert '"event": "DataDrifted"' not in (tmp_path / "run/events.jsonl").read_text()


def halves(folder):
    """Write the documents of one corpus, by turns, into two files; return them."""
    lines = corpus(folder, documents=700).read_text().splitlines()
    paths = [folder / "first.jsonl", folder / "second.jsonl"]
    for number, path in enumerate(paths):
        path.write_text("\n".join(lines[number::2]) + "\n")
    return paths


def train_own(path, name, *more):
    """Train with a tokenizer that is made of the data."""
    settings = tiny(path, f"run.dir={path.parent / name}", "monitors=[]", *more)
    build(load_settings([], settings, {}).settings, report=lambda _: None).run()


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_tokenizer_of_its_own_is_no_drift(mode, tmp_path, monkeypatch):
    """Random halves of one corpus, each with the tokenizer that it trains, do not stop a run; other texts do."""
    monkeypatch.chdir(tmp_path)
    first, second = halves(tmp_path)
    train_own(first, "first", "data.mode=cache", "data.holdout=0", "run.budget.steps=1")
    [reference] = datasets(tmp_path / "cache")
    drift = (f"data.drift.reference={reference}", "data.drift.action=stop", "data.drift.every=100")
    train_own(second, "second", f"data.mode={mode}", "data.holdout=0", "run.budget.steps=2", *drift)
    assert '"event": "DataDrifted"' not in (tmp_path / "second/events.jsonl").read_text()
    second.write_text(second.read_text().replace("model", "Modell üben"))
    with pytest.raises(DataError, match="share of non-ASCII bytes"):
        train_own(second, "other", f"data.mode={mode}", "data.holdout=0", "run.budget.steps=40", *drift)
    compared = run_here("data", "compare", f"cache/tokens/{reference}", "other", cwd=tmp_path)
    if mode == "cache":
        assert "major drift" in compared.stdout
        assert "figures of tokens are not compared: the tokenizers differ" in compared.stdout
    else:
        assert "the run streams its data" in compared.stderr
