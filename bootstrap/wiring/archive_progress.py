"""The progress of an upload to the archive, which is shown only while the run waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.domain.phase import Amount

if TYPE_CHECKING:
    from holdfast.domain.phase import ShowPhase

WAITING = "waiting for the archive"


@final
class ArchiveProgress:
    """Passes phases to ``show``, and adds to the phase ``WAITING`` the bytes that the archive has; any thread counts.

    At other times the upload goes on beside training, and is not shown.
    """

    def __init__(self, show: ShowPhase) -> None:
        self._shown_by = show
        self._phase = ""
        self._amount: Amount | None = None

    def show(self, phase: str, part: float | Amount | None = None, /) -> None:
        """Show ``phase``; this method is a ``ShowPhase``."""
        self._phase = phase
        self._shown_by(phase, self._amount if phase == WAITING else part)

    def count(self, done: int, total: int) -> None:
        """Note that the archive has ``done`` of the ``total`` bytes of a checkpoint."""
        self._amount = Amount(done, total)
        if self._phase == WAITING:
            self._shown_by(WAITING, self._amount)
