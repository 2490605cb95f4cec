"""What a person sees of a run where there is no console, and of its saves."""

from __future__ import annotations

from holdfast.application.handlers.save_checkpoints import ShowSaves
from holdfast.bootstrap.stages.open_run.screen import Screen
from holdfast.domain.commands import SaveReason
from holdfast.domain.events import CheckpointFailed, CheckpointSaved, CheckpointStarted, RunStarted
from holdfast.domain.phase import Amount
from holdfast.domain.training.step_outcome import Progress


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_without_a_console_a_long_phase_is_a_line_a_minute():
    """A host that only takes lines hears of a long phase how far it is, and nothing of a short one."""
    clock, lines = Clock(), []
    screen = Screen(report=lines.append, clock=clock)
    for second in range(26):
        clock.now = 6.0 * second
        screen.show("tokenizing", Amount(second, 100) if second % 2 else second / 100)
    assert lines == ["tokenizing: 10%", "tokenizing: 20%"]


def test_secrets_are_masked_on_the_screen():
    """A URL with a password is shown without it."""
    lines = []
    Screen(report=lines.append).say("data are at https://me:secret@host/path")
    assert "secret" not in lines[0]


def test_a_save_that_is_waited_for_is_shown():
    """A periodic save is nobody's wait; a last one is shown until it is durable, and then what comes after it."""
    shown = []
    saves = ShowSaves(lambda phase, _share=None: shown.append(phase), "waiting for the archive")
    progress = Progress(7, 70)
    for event in (
        RunStarted(progress),
        CheckpointStarted(progress, SaveReason.PERIODIC),
        CheckpointStarted(progress, SaveReason.FINAL),
        CheckpointSaved(progress, "checkpoint-7", SaveReason.FINAL, 0.1, 0.1),
        CheckpointStarted(progress, SaveReason.PREEMPT),
        CheckpointFailed(progress, SaveReason.PREEMPT, "no space left"),
    ):
        saves(event)
    assert shown == ["", "", "saving checkpoint-7", "waiting for the archive", "saving checkpoint-7", ""]
