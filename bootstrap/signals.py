"""Signals as commands."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from domain.errors import LeaveAtOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_WARNING = signal.SIGUSR1  # Slurm's, ahead of the SIGTERM that it announces
_STOPPING = (signal.SIGINT, signal.SIGTERM, _WARNING)


class StoppedAtOnce(LeaveAtOnce):
    """A signal came before there was a run to stop, or a second time: leave without saving anything more."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped at once by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def stopping_on_signals(request_stop: Callable[[str, int], bool]) -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGUSR1 call ``request_stop(reason, number)``; at its end all is as it was.

    ``request_stop`` only queues a command and returns True, or False if there is nothing to stop yet; then, and on a
    second signal, ``StoppedAtOnce`` is raised. SIGUSR1 warns of another signal: it does not make that one the second,
    nor is it ever a second one itself. Only for the main thread: Python delivers signals nowhere else.
    """
    is_stopping = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping and number == _WARNING:
            return
        if is_stopping or not request_stop(f"received {signal.Signals(number).name}", number):
            raise StoppedAtOnce(number)
        is_stopping = number != _WARNING

    previous = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
