import pytest

from holdfast.application.handlers.control_files import ControlFiles
from holdfast.domain.commands import SaveReason
from holdfast.domain.errors import StateError
from holdfast.domain.events import (
    CheckpointFailed,
    CheckpointSaved,
    RunFinished,
    RunStarted,
    StepCompleted,
)
from tests.support.loop import Loop


def loop_of(folder, *, clock=None, **settings):
    """Return a run that obeys the files in ``folder``, of which each look is one second behind the one before."""
    loop = Loop(**settings)
    ticks = iter(range(10**6))
    obey = ControlFiles(
        lambda name: (folder / name).exists(),
        lambda name: (folder / name).unlink(),
        loop.inbox,
        clock=clock or (lambda: next(ticks)),
    )
    loop.bus.subscribe(RunStarted, obey.on_start)
    loop.bus.subscribe(StepCompleted, obey.on_step)
    loop.bus.subscribe(CheckpointSaved, obey.on_saved)
    loop.bus.subscribe(CheckpointFailed, obey.on_failed_save)
    loop.bus.subscribe(RunFinished, obey.on_end)
    return loop


def test_a_file_stop_ends_the_run_with_a_checkpoint(tmp_path):
    """A run that finds STOP saves the step, ends without an error and takes the file away."""
    loop = loop_of(tmp_path)
    loop.at_step(3, (tmp_path / "STOP").touch)
    assert loop.run().step in {3, 4}
    assert loop.train.stopped_by.signal is None
    assert [event.reason for event in loop.published(CheckpointSaved)] == [SaveReason.FINAL]
    assert not list(tmp_path.iterdir())


def test_a_file_stop_that_is_there_already_trains_nothing(tmp_path):
    """STOP is obeyed before the first step."""
    (tmp_path / "STOP").touch()
    assert loop_of(tmp_path).run().step == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_file_save_asks_for_one_checkpoint(tmp_path, step, every, beside):
    """A run that finds SAVE makes the step durable, takes the file away and goes on to its end."""
    loop = loop_of(tmp_path, save_every=every, saves_beside=beside)
    loop.bus.subscribe(RunStarted, lambda _: None)
    loop.at_step(step, (tmp_path / "SAVE").touch)
    assert loop.run().step == 8
    saved = {event.progress.step for event in loop.published(CheckpointSaved)}
    assert saved & {step, min(step + 1, 8)}
    assert not list(tmp_path.iterdir()) or step == 8  # the last step may be behind the last look


def test_a_file_save_stays_until_a_save_succeeds(tmp_path):
    """A save that fails leaves SAVE where it is, and is tried again."""
    loop = loop_of(tmp_path)
    save, refusals = loop.store.save, [1, 1]

    def refuse(snapshot):
        if refusals:
            refusals.pop()
            msg = "the disk is full"
            raise StateError(msg)
        return save(snapshot)

    loop.store.save = refuse
    loop.at_step(1, (tmp_path / "SAVE").touch)
    loop.run()
    assert len(loop.published(CheckpointFailed)) == 2
    assert loop.published(CheckpointSaved)[0].progress.step < 8
    assert not list(tmp_path.iterdir())


def test_files_are_looked_for_once_a_second(tmp_path):
    """A fast run does not ask the file system at each step."""
    loop = loop_of(tmp_path, clock=lambda: 0.0)
    loop.at_step(2, (tmp_path / "STOP").touch)
    assert loop.run().step == 8
    assert (tmp_path / "STOP").exists()
