import json

import pytest

from holdfast.application.handlers.write_post_mortem import WritePostMortem
from holdfast.bootstrap.run_folder.post_mortem import PostMortem, resources
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import DataError, OutOfMemory, RestartNeeded, StateError, TrainingError
from holdfast.domain.events import Event, HandlerFailed, RunFailed
from holdfast.domain.fault_tolerance.remedies import remedies_for
from tests.support.loop import Loop

CANARY = "CANARY77"


def failed_run(error, write, *, resources=dict, steps=4):
    """Return a run that raises ``error`` behind so many steps, with a post-mortem handed to ``write``."""
    loop = Loop(save_every=3, saves_on_failure=False)
    handler = WritePostMortem(resources, write)
    loop.bus.subscribe(Event, handler.on_event)
    loop.bus.subscribe(RunFailed, handler.on_failure)

    def before_part(step, _):
        if step > steps:
            raise error

    loop.trainable.before_part = before_part
    with pytest.raises(type(error)):
        loop.run()
    return loop


def post_mortem(folder, attempt="20261122-100000", rank=0, keep=5):
    """Return what writes into the run folder ``folder``."""
    return PostMortem(folder, attempt, rank, 2, TrainSettings(), keep)


def test_a_failure_is_handed_on_with_its_story():
    """The post-mortem has the error, the last complete and the last durable step, and this rank's events in order."""
    found = []
    error = ZeroDivisionError("here")
    loop = failed_run(error, found.append, resources=lambda: {"host": {"total": 7}})
    (failure,) = found
    assert (failure.error, failure.progress.step, failure.saved) == (error, 4, 3)
    assert [event["event"] for event in failure.events] == loop.story
    assert failure.resources == {"host": {"total": 7}}


def test_only_the_last_events_are_kept():
    """A long run remembers the last 200 events and no more."""
    found = []
    loop = Loop()
    handler = WritePostMortem(dict, found.append)
    for number in range(300):
        handler.on_event(HandlerFailed(str(number), "x", ValueError()))
    handler.on_failure(RunFailed(loop.run(), ValueError()))
    assert [event["during"] for event in found[0].events] == [str(number) for number in range(100, 300)]


def test_a_post_mortem_that_cannot_be_written_hides_no_error(tmp_path):
    """Where the disk takes nothing, the run's own error is raised and the other is told."""
    (tmp_path / "post-mortem").write_text("in the way")
    loop = failed_run(ZeroDivisionError("first"), post_mortem(tmp_path).write)
    assert [event.event for event in loop.published(HandlerFailed)] == ["RunFailed"]


def test_each_file_holds_what_it_should(tmp_path):
    """A rank's folder tells cause, advice, events, memory, batch, environment and settings, each in its own file."""
    failed_run(OutOfMemory("no room"), post_mortem(tmp_path, rank=1).write, resources=lambda: resources(tmp_path))
    folder = tmp_path / "post-mortem/20261122-100000/rank1"
    read = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    cause = read["cause.json"]
    assert (cause["error"], cause["rank"], cause["step"], cause["saved_step"]) == ("OutOfMemory", 1, 4, 3)
    assert any("optimizer.micro_batch" in words for words in cause["what_to_try"])
    assert read["memory.json"]["host"]["total"] > read["memory.json"]["process"]["resident"] > 0
    batch = TrainSettings().optimizer.batch_size
    assert (read["batch.json"]["first_sample"], read["batch.json"]["end"]) == (16, 16 + batch)
    assert read["environment.json"]["versions"]["torch"]
    assert read["settings.json"]["recovery"]["post_mortems"] == 5
    assert "application/training/loop.py" in (folder / "traceback.txt").read_text()
    assert "test_each_file_holds_what_it_should" in (folder / "stacks.txt").read_text()
    last = (folder / "events.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["event"] == "RunFailed"


def test_secrets_are_in_no_file(tmp_path, monkeypatch):
    """A password in an error's address, and the values of variables that hold secrets, are written nowhere."""
    monkeypatch.setenv("NCCL_SECRET_TOKEN", CANARY)
    monkeypatch.setenv("TORCH_HUB_URL", f"https://user:{CANARY}@host/x")
    failed_run(OSError(f"https://user:{CANARY}@host/x is gone"), post_mortem(tmp_path).write)
    texts = [path.read_text() for path in (tmp_path / "post-mortem").rglob("*") if path.is_file()]
    assert len(texts) == 8
    assert not [text for text in texts if CANARY in text]


def test_a_long_error_is_cut(tmp_path):
    """Whatever an error says, the folder stays small."""
    failed_run(ValueError("x" * 10**7), post_mortem(tmp_path).write)
    assert sum(path.stat().st_size for path in (tmp_path / "post-mortem").rglob("*")) < 10**6


def test_the_newest_ones_stay(tmp_path):
    """Of many failures the newest so many are kept."""
    for number in range(4):
        failed_run(ValueError(), post_mortem(tmp_path, f"20261122-10000{number}", keep=2).write, steps=1)
    assert sorted(path.name for path in (tmp_path / "post-mortem").iterdir()) == ["20261122-100002", "20261122-100003"]


@pytest.mark.parametrize(
    "error",
    [OutOfMemory(), DataError(), StateError(), RestartNeeded(), TrainingError(), OSError(), SystemExit(), ValueError()],
    ids=lambda error: type(error).__name__,
)
def test_there_is_something_to_try_after_every_error(error):
    """Whatever ended a run, there is a word on what to do, in one line each."""
    advice = remedies_for(error)
    assert advice
    assert all(words and "\n" not in words for words in advice)
