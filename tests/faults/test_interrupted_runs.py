"""T10, T11 and T15: signals and errors in each phase of a real run."""

from __future__ import annotations

import shutil
import signal

import pytest

from tests.support.forked_runs import FOLDER, STEPS, complete_steps, final_state, stored_steps

SLOW = pytest.mark.slow
WEIGHTS = ("model.safetensors", "optimizer.safetensors")


def assert_ends_as_undisturbed(runs, home):
    """Check that the same command goes on to the very bits of the undisturbed run, and leaves nothing behind."""
    result = runs.run(home)
    assert result["code"] == 0, (home / "err.log").read_text()
    assert (result["threads"], result["orphans"]) == ([], False)
    assert final_state(home) == runs.undisturbed
    assert complete_steps(home) == list(range(1, STEPS + 1))
    assert not [*(home / FOLDER).glob("quarantine/*"), *(home / FOLDER).glob(".tmp/*")]


@pytest.mark.parametrize(
    ("phase", "count", "step"),
    [
        pytest.param("data", 7, 7, marks=SLOW),
        pytest.param("forward", 11, 6, marks=SLOW),
        ("backward", 13, 7),
        pytest.param("backward", 14, 7, marks=SLOW),
        pytest.param("optimizer", 7, 7, marks=SLOW),
        pytest.param("capture", 2, 8, marks=SLOW),
        ("write", 3, None),
        pytest.param("evaluation", 2, 6, marks=SLOW),
        pytest.param("monitor", 5, None, marks=SLOW),
        pytest.param("handler", 1, None, marks=SLOW),
    ],
)
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW), pytest.param(signal.SIGUSR1, marks=SLOW)],
)
def test_a_signal_in_any_phase_saves_and_stops(runs, home, number, phase, count, step):
    """T10: a signal stops the run at the end of its step with a checkpoint of it, and the next start loses no bit."""
    result = runs.run(home, at={"phase": phase, "count": count, "number": number})
    assert result["code"] == 128 + number, (home / "err.log").read_text()
    assert (result["threads"], result["orphans"]) == ([], False)
    assert stored_steps(home)[-1] == complete_steps(home)[-1] == (step or complete_steps(home)[-1])
    assert_ends_as_undisturbed(runs, home)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("phase", ["tokenizer", "tokens", "model"])
def test_a_signal_before_training_stops_at_once(runs, home, number, phase):
    """T10: a signal while the run is being prepared ends it with the signal's code, and the next start begins anew."""
    more = (f"run.cache_dir={home / 'cache'}",)
    result = runs.run(home, *more, at={"phase": phase, "count": 1, "number": number})
    assert result["code"] == 128 + number, (home / "err.log").read_text()
    assert (result["threads"], result["orphans"]) == ([], False)
    assert_ends_as_undisturbed(runs, home)


@pytest.mark.slow
def test_a_warning_and_the_signal_it_announces_save_once(runs, home):
    """T10: SIGTERM behind SIGUSR1, as Slurm sends them, does not cut the save short."""
    result = runs.run(home, at={"phase": "backward", "count": 13, "number": signal.SIGUSR1, "then": signal.SIGTERM})
    assert result["code"] == 143, (home / "err.log").read_text()
    assert stored_steps(home)[-1] == 7
    assert_ends_as_undisturbed(runs, home)


def test_a_second_signal_stops_at_once(runs, home):
    """T10: a second SIGTERM ends the run where it is, without a new checkpoint, and what was durable goes on."""
    result = runs.run(home, at={"phase": "backward", "count": 13, "number": signal.SIGTERM, "twice": True})
    assert result["code"] == 143, (home / "err.log").read_text()
    assert set(stored_steps(home)) <= {4, 8}
    assert_ends_as_undisturbed(runs, home)


@pytest.mark.parametrize(
    ("phase", "count", "step"),
    [
        pytest.param("data", 7, 6, marks=SLOW),
        ("forward", 11, 5),
        pytest.param("backward", 13, 6, marks=SLOW),
        pytest.param("backward", 14, 6, marks=SLOW),
        ("optimizer", 7, 4),
        pytest.param("capture", 2, 8, marks=SLOW),
        pytest.param("evaluation", 2, 6, marks=SLOW),
        pytest.param("flush", 1, 12, marks=SLOW),
    ],
)
def test_an_error_in_any_phase_keeps_the_last_step(runs, home, phase, count, step):
    """T11: an error leaves a checkpoint of the last complete step, or of the last save if it cut a step in two."""
    result = runs.run(home, at={"phase": phase, "count": count, "error": "RuntimeError"})
    assert result["code"] == 1
    assert "planted" in (home / "err.log").read_text()
    assert (result["threads"], result["orphans"]) == ([], False)
    assert stored_steps(home)[-1] == step
    assert_ends_as_undisturbed(runs, home)


@pytest.mark.parametrize("error", ["OSError", pytest.param("RuntimeError", marks=SLOW)])
def test_an_error_of_the_writing_thread_stops_nothing(runs, home, error):
    """T11: a periodic save that fails is told, training goes on, and the next save is made."""
    result = runs.run(home, at={"phase": "write", "count": 2, "error": error})
    assert result["code"] == 0
    assert stored_steps(home) == [8, 12]
    assert "CheckpointFailed" in (home / FOLDER / "events.jsonl").read_text()
    assert_ends_as_undisturbed(runs, home)


def test_a_checkpoint_holds_what_was_at_the_call(runs, home):
    """T15: what three later steps change before its first byte is written is not in a checkpoint."""
    result = runs.run(home, "state_store.keep=9", at={"phase": "write", "count": 1, "forwards": 6})
    assert result["code"] == 0, (home / "err.log").read_text()
    assert stored_steps(home) == [4, 8, 12]
    for step in (8, 12):
        shutil.rmtree(home / FOLDER / f"checkpoints/checkpoint-{step}")
    assert_ends_as_undisturbed(runs, home)


@pytest.mark.slow
def test_saves_back_to_back_hold_their_own_steps(runs, home):
    """T15: checkpoints of each step, written beside training, are those of a run that waits for each."""
    found = []
    for background in ("true", "false"):
        place = home / background
        more = ("state_store.every=1", "state_store.keep=99", f"state_store.background={background}")
        assert runs.run(place, *more)["code"] == 0
        folders = [place / FOLDER / f"checkpoints/checkpoint-{step}" for step in range(1, STEPS + 1)]
        found.append([[(folder / name).read_bytes() for name in WEIGHTS] for folder in folders])
    assert found[0] == found[1]
    assert len({model for model, _ in found[0]}) == STEPS
