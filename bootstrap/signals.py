"""Signals as commands."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, final

from domain.errors import LeaveAtOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_WARNING = signal.SIGUSR1  # Slurm's, ahead of the SIGTERM that it announces
_STOPPING = (signal.SIGINT, signal.SIGTERM, _WARNING)
_PATIENCE_SECONDS = 0.3
_CLOSE_SECONDS = 2.0
_SAVING = {
    signal.SIGINT: "saving after this step; press Ctrl-C again to stop now",
    signal.SIGTERM: "saving after this step; a second one stops now",
    _WARNING: "saving after this step",
}


class StoppedAtOnce(LeaveAtOnce):
    """A signal came before there was a run to stop, or a second time: leave without saving anything more."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped at once by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def stopping_on_signals(
    request_stop: Callable[[str, int], bool],
    *,
    acknowledge: Callable[[str], object] = lambda _: None,
    will_save: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGUSR1 call ``request_stop(reason, number)``; at its end all is as it was.

    ``request_stop`` only queues a command and returns True, or False if there is nothing to stop yet; then, and on a
    second signal, ``StoppedAtOnce`` is raised. SIGUSR1 warns of another signal: it does not make that one the second,
    nor is it ever a second one itself. Only for the main thread: Python delivers signals nowhere else.
    ``acknowledge`` gets a sentence at once, in a thread of its own, even while a library keeps the main thread from
    running any handler; ``will_save`` tells whether there is a run that will save.
    """
    is_stopping = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping and number == _WARNING:
            return
        if is_stopping or not request_stop(f"received {signal.Signals(number).name}", number):
            answers.is_leaving.set()
            raise StoppedAtOnce(number)
        is_stopping = number != _WARNING

    answers = _Answers(acknowledge, will_save)
    previous = {number: signal.signal(number, handle) for number in _STOPPING}
    try:
        with answers.given():
            yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@final
class _Answers:
    """Acknowledges each signal from the byte that the C part of Python's handler writes: Python's own part may wait."""

    def __init__(self, acknowledge: Callable[[str], object], will_save: Callable[[], bool]) -> None:
        self._acknowledge = acknowledge
        self._will_save = will_save
        self.is_leaving = Event()

    @contextmanager
    def given(self) -> Iterator[None]:
        """Acknowledge the signals that come within the block."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = Thread(target=self._listen, args=(reader,), name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(writer)
            thread.join(_CLOSE_SECONDS)  # a terminal may be held, or a process that was forked keep the pipe open
            if not thread.is_alive():
                os.close(reader)

    def _listen(self, reader: int) -> None:
        is_stopping = False
        while byte := os.read(reader, 1):
            number = byte[0]
            if number not in _STOPPING or (is_stopping and number == _WARNING):
                continue
            if not is_stopping and self._will_save():
                self._say(number, _SAVING[signal.Signals(number)])
            elif not self.is_leaving.wait(_PATIENCE_SECONDS):  # else the end of the command says it
                self._say(number, "stopping now")
            is_stopping = is_stopping or number != _WARNING

    def _say(self, number: int, words: str) -> None:
        with suppress(OSError):  # nobody reads any more
            self._acknowledge(f"received {signal.Signals(number).name}: {words}")


def write_at_once(sentence: str) -> None:
    """Write ``sentence`` to standard error past all that may hold it; a terminal's live line gives way to it."""
    start = "\r\x1b[2K" if os.isatty(2) else ""
    os.write(2, f"{start}{sentence}\n".encode())
