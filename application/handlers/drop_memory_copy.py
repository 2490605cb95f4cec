"""Frees the copy of the state in host memory before that memory runs out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import DropCopy

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import StepCompleted

_SECONDS = 1.0


@final
class DropMemoryCopy:
    """Asks for the copy of the state in memory to be freed once ``is_tight`` says that memory is nearly full.

    Checks at most once a second, and asks once until memory has been free again.
    """

    def __init__(
        self, is_tight: Callable[[], bool], inbox: Inbox, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_tight = is_tight
        self._inbox = inbox
        self._clock = clock
        self._looked = clock()
        self._was_tight = False

    def __call__(self, event: StepCompleted) -> None:  # noqa: ARG002  that time has passed is enough
        """Check the memory if a second has passed."""
        if self._clock() - self._looked < _SECONDS:
            return
        self._looked = self._clock()
        was_tight, self._was_tight = self._was_tight, self._is_tight()
        if self._was_tight and not was_tight:
            self._inbox.post(DropCopy())
