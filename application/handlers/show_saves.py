"""Shows on the screen the saves that training waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.domain.commands import SaveReason
from holdfast.domain.events import CheckpointFailed, CheckpointSaved, CheckpointStarted, RunFailed, RunStarted
from holdfast.domain.phase import saving_phase

if TYPE_CHECKING:
    from holdfast.domain.events import Event
    from holdfast.domain.phase import ShowPhase


@final
class ShowSaves:
    """Shows the saves that the run waits for, and after the last one ``afterwards``."""

    EVENTS = (RunStarted, RunFailed, CheckpointStarted, CheckpointSaved, CheckpointFailed)

    def __init__(self, show: ShowPhase, afterwards: str = "") -> None:
        self._show = show
        self._afterwards = afterwards

    def __call__(self, event: Event) -> None:
        """Answer ``event``; periodic saves are not shown, as training does not wait for them."""
        match event:
            case CheckpointStarted(progress, reason) if reason != SaveReason.PERIODIC:
                self._show(saving_phase(progress.step))
            case CheckpointSaved(_, _, reason) if reason in (SaveReason.FINAL, SaveReason.PREEMPT):
                self._show(self._afterwards)
            case _:
                self._show("")
