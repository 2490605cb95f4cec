"""The upload to the archive on the screen, and the best checkpoint of a run."""

from holdfast.bootstrap.run_folder.best_checkpoint import best_of, best_step, losses_of
from holdfast.bootstrap.stages.open_run.screen import WAITING, ArchiveProgress
from holdfast.domain.phase import Amount
from holdfast.domain.training.early_stopping import Patience
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import CheckpointInfo


def test_an_upload_is_shown_only_while_it_is_waited_for():
    """Beside training it is silent; once the run waits, the bytes so far are there at once, and rise."""
    shown = []
    progress = ArchiveProgress(lambda *phase: shown.append(phase))
    progress.count(10, 100)
    progress.show("saving checkpoint-3", 0.5)
    progress.count(20, 100)
    assert shown == [("saving checkpoint-3", 0.5)]
    progress.show(WAITING)
    progress.count(60, 100)
    progress.show("")
    progress.count(100, 100)
    assert shown[1:] == [(WAITING, Amount(20, 100)), (WAITING, Amount(60, 100)), ("", None)]


def stored(step, loss, patience=None):
    return CheckpointInfo(Progress(step, patience=patience), "periodic", f"checkpoint-{step}", 1, loss)


def test_a_loss_that_was_measured_after_the_save_counts():
    """A checkpoint whose evaluation the next start made up for is the best if its loss is the lowest."""
    patience = Patience("eval_loss", 30, 3, 0.0, 1.0, 20, 1.0, 1)
    found = [stored(10, 3.0), stored(20, None), stored(30, 2.0, patience)]
    assert losses_of(found) == {10: 3.0, 20: 1.0, 30: 2.0}
    assert losses_of([found[0], found[2]]) == {10: 3.0, 30: 2.0}
    expected = {"metric": "eval_loss", "value": 1.0, "step": 20, "checkpoint": "checkpoint-20"}
    assert best_of(found, patience, keeps_best=False) == expected
    assert best_of(found[::2], patience, keeps_best=False) == expected | {"checkpoint": None}


def test_the_best_is_that_of_early_stopping():
    """The metric of early stopping decides, even if its checkpoint is not stored; without it the lowest loss does."""
    patience = Patience("eval_reward_accuracy", 30, 3, 0.0, 0.9, 20, 0.9, 1)
    found = [stored(10, 1.0), stored(20, 3.0), stored(30, 2.0, patience)]
    assert best_step(found) == best_step(found[::-1]) == best_step(found[::2]) == 20
    assert best_step(found[:2]) == 10
    assert best_of(found, None, keeps_best=True)["step"] == 10
    never_finite = Patience("eval_reward_accuracy", 30, 3)
    assert best_step([*found[:2], stored(30, 2.0, never_finite)]) == 10
    assert best_step([stored(10, 1.0), stored(20, 1.0)]) == 20
    assert best_step([stored(10, None)]) is None


def test_without_early_stopping_the_best_is_that_of_retention():
    """Of equal losses the later step is the best; without keep_best, or without a loss, there is none."""
    found = [stored(10, 2.0), stored(20, 2.0), stored(30, 3.0)]
    assert best_of(found, None, keeps_best=True)["step"] == 20
    assert best_of(found, None, keeps_best=False) is None
    assert best_of([stored(10, None)], None, keeps_best=True) is None
