"""A run whose run.json is lost or damaged goes on from the copy in its newest checkpoint."""

from __future__ import annotations

import json
import shutil

import pytest

from holdfast.bootstrap.operations.list_runs import list_runs
from holdfast.bootstrap.web.watch_app import RunBoard
from tests.support.command_line import SAME_RHYTHM, corpus, losses, run, run_here, tiny

RUN = "runs/default"
KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
MORE = (SAME_RHYTHM, "evaluation.at_start=false", "evaluation.every=0")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a run of 10 steps, its settings, and the losses of one that went on to 15."""
    folder = tmp_path_factory.mktemp("home")
    settings = tiny(corpus(folder), *MORE)
    assert run_here("train", *settings, "run.budget.steps=10", cwd=folder).returncode == 0
    shutil.copytree(folder / RUN, folder / "ended")
    assert run_here("train", *settings, "run.budget.steps=15", cwd=folder).returncode == 0
    undisturbed = losses(folder / RUN)
    shutil.rmtree(folder / RUN)
    return folder, settings, undisturbed


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """Change a bit of a choice and leave valid JSON."""
    record = json.loads(path.read_text())
    record["auto"]["data.mode"]["value"] = record["auto"]["data.mode"]["value"][:-1] + "g"
    path.write_text(json.dumps(record))


LOSE = {
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "half": cut,
    "missing": lambda path: path.unlink(),
    "flipped": flip,
}


@pytest.mark.parametrize(
    "how", ["zeros", "flipped", *(pytest.param(each, marks=pytest.mark.slow) for each in ("half", "missing"))]
)
def test_a_run_whose_record_is_lost_goes_on_bit_for_bit(home, tmp_path, how):
    """One sentence says from where run.json came back; the steps are those of a run that was never disturbed."""
    _, settings, undisturbed = home
    shutil.copytree(home[0] / "ended", tmp_path / RUN)
    LOSE[how](tmp_path / RUN / "run.json")
    process = run_here("train", *settings, "run.budget.steps=15", cwd=tmp_path)
    told = process.stdout + process.stderr
    assert process.returncode == 0, told
    assert told.count("checkpoint-10 holds it") == 1
    assert not any(word in told for word in ("Traceback", "--fresh"))
    assert losses(tmp_path / RUN) == undisturbed
    assert "run.json was put back as checkpoint-10 holds it" in run_here("explain", RUN, cwd=tmp_path).stdout


@pytest.mark.slow
def test_a_command_that_reads_a_lost_record_says_what_it_uses(home, tmp_path):
    """A process of its own evaluates as with the sound record, and warns once, on standard error."""
    for place in ("sound", "lost"):
        shutil.copytree(home[0] / "ended", tmp_path / place / RUN)
    (tmp_path / "lost" / RUN / "run.json").unlink()
    sound, lost = (run("evaluate", RUN, cwd=tmp_path / place) for place in ("sound", "lost"))
    assert (lost.returncode, lost.stdout) == (0, sound.stdout), lost.stderr
    assert lost.stderr.count("what checkpoint-10 holds of it is used") == 1


def test_the_list_and_the_page_show_a_run_whose_record_is_missing(home, tmp_path):
    """They show what they show of a sound run, by the copy in its newest checkpoint, and change nothing."""
    for place in ("sound", "lost"):
        shutil.copytree(home[0] / "ended", tmp_path / place / "run")
    (tmp_path / "lost/run/run.json").unlink()
    listed = [json.loads(list_runs(tmp_path / place, as_json=True, width=80)) for place in ("sound", "lost")]
    assert [(each["name"], each["step"]) for found in listed for each in found["runs"]] == [("run", 10)] * 2
    assert [found["others"] for found in listed] == [{}, {}]
    boards = [RunBoard([tmp_path / place]) for place in ("sound", "lost")]
    try:
        for board in boards:
            board.look()
        shown = [board.state()["runs"][0] for board in boards]
        assert [each["name"] for each in shown] == ["run", "run"]
        assert [each["problem"] for each in shown] == [None, None]
        assert shown[0]["step"] == shown[1]["step"] == 10
    finally:
        for board in boards:
            board.close()
    assert not (tmp_path / "lost/run/run.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["half", "missing"])
@pytest.mark.parametrize(
    "store",
    [
        ("state_store.encryption.key_from=env:RUN_KEY",),
        ("state_store.archive.url=archive", "run.name=default"),
        ("state_store.encryption.key_from=env:RUN_KEY", "state_store.archive.url=archive"),
    ],
    ids=["encrypted", "archived", "both"],
)
def test_encrypted_and_archived_checkpoints_cure_it_too(tmp_path, monkeypatch, how, store):
    """The start decrypts the copy; one in an archive alone is fetched with its checkpoint."""
    monkeypatch.setenv("RUN_KEY", KEY)
    settings = tiny(corpus(tmp_path), *MORE, *store)
    assert run_here("train", *settings, "run.budget.steps=10", cwd=tmp_path).returncode == 0
    if "archive" in store[-1] or len(store) > 1:
        shutil.rmtree(tmp_path / RUN / "checkpoints")
    LOSE[how](tmp_path / RUN / "run.json")
    process = run_here("train", *settings, "run.budget.steps=15", cwd=tmp_path)
    told = process.stdout + process.stderr
    assert process.returncode == 0, told
    assert told.count("checkpoint-10 holds it") == 1
    assert sorted(losses(tmp_path / RUN)) == list(range(1, 16))


@pytest.mark.slow
def test_a_return_to_a_step_begins_with_the_cure(home, tmp_path):
    """``--from-step`` on a run whose record is lost puts it back first, and keeps what it says of the return."""
    shutil.copytree(home[0] / "ended", tmp_path / RUN)
    LOSE["zeros"](tmp_path / RUN / "run.json")
    process = run_here("train", *home[1], "run.budget.steps=15", "--from-step", "5", cwd=tmp_path)
    told = process.stdout + process.stderr
    assert process.returncode == 0, told
    assert told.count("checkpoint-10 holds it") == 1
    history = json.loads((tmp_path / RUN / "run.json").read_text())["history"]
    assert [next(iter(entry.keys() - {"time"})) for entry in history][:2] == ["restored_from", "from_step"]
    assert losses(tmp_path / RUN) == home[2]
