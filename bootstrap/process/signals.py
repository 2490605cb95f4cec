"""Signals as commands."""

from __future__ import annotations

import errno
import os
import signal
import termios
import time
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.process.exit_codes import code_of_signal
from holdfast.domain.errors import LeaveAtOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

WARNING = signal.SIGUSR1
"""Slurm's signal ahead of the SIGTERM that it announces."""
_HANG_UP = signal.SIGHUP  # of the terminal: the kernel and the shell each send one, and systemd one beside SIGTERM
MILD = frozenset({WARNING, _HANG_UP})
"""Signals that may come before or after another signal: they begin no grace period and do not count as a second one."""
_PATIENCE_SECONDS = 0.3
_CLOSE_SECONDS = 2.0
_COPY_SECONDS = 1.0
_SAVING = {
    signal.SIGINT: "saving after this step; press Ctrl-C again to stop now",
    signal.SIGTERM: "saving after this step; a second SIGTERM stops now",
    WARNING: "saving after this step",
    _HANG_UP: "saving after this step",
}


class StoppedAtOnce(LeaveAtOnce):
    """A signal came before there was a run to stop, or a second signal came: the process ends without another save."""

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
    """Within the block, ``stopping_signals`` call ``request_stop(reason, number)``; the old handlers return at its end.

    ``request_stop`` only queues a command and returns True, or False if there is nothing to stop yet. Raises
    ``StoppedAtOnce`` in that case and on a second signal. A signal in ``MILD`` may accompany another one: it does not
    count as a first or a second signal. Neither does the copy that a launcher passes on, within a second, of a signal
    that a scheduler has sent to all processes. Only for the main thread, as Python delivers signals only there.
    ``acknowledge`` gets a sentence at once, in a separate thread, even while a library keeps the main thread from
    running any handler. ``will_save`` returns whether there is a run that will save.
    """
    is_stopping, copies = False, _Copies(is_possible=is_launched())

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if number == _HANG_UP:
            leave_lost_terminal()
        is_copy = copies.has(number)
        if is_stopping and (number in MILD or is_copy):
            return
        if is_stopping or not request_stop(f"received {signal.Signals(number).name}", number):
            answers.is_leaving.set()
            raise StoppedAtOnce(number)
        is_stopping = number not in MILD

    answers = _Answers(acknowledge, will_save)
    previous = {number: signal.signal(number, handle) for number in stopping_signals()}
    try:
        with answers.given():
            yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def exiting_on_termination() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP end the program by ``SystemExit``, so that cleanup is done first.

    Only for the main thread.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(code_of_signal(number))

    wanted = [number for number in (signal.SIGTERM, _HANG_UP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in wanted:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def keeping_handlers(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Give the signals ``numbers`` their handlers back after the block; only the main thread can replace them."""
    is_main = current_thread() is main_thread()
    previous = {number: signal.getsignal(number) for number in numbers} if is_main else {}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def stopping_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run: SIGINT, SIGTERM, SIGUSR1, and SIGHUP unless it is ignored (``nohup``)."""
    is_ignored = signal.getsignal(_HANG_UP) == signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, WARNING, *(() if is_ignored else (_HANG_UP,)))


def leave_lost_terminal() -> None:
    """Redirect standard input, output and error to ``/dev/null`` if they belong to a closed terminal."""
    for descriptor in range(3):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # no other file says so
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


@final
class _Copies:
    """Recognizes the copy of a signal that follows it at once: Slurm signals all processes, and so does torchrun."""

    def __init__(self, *, is_possible: bool) -> None:
        self._is_possible = is_possible
        self._last: tuple[int, float] | None = None

    def has(self, number: int) -> bool:
        """Return whether the signal ``number`` that has come is a copy of the last one."""
        now, last = time.monotonic(), self._last
        self._last = (number, now)
        return self._is_possible and last is not None and number == last[0] and now - last[1] < _COPY_SECONDS


@final
class _Answers:
    """Acknowledges each signal by the byte that Python's C-level handler writes, as Python-level handlers may wait."""

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
        is_stopping, heard, copies = False, stopping_signals(), _Copies(is_possible=is_launched())
        while byte := os.read(reader, 1):
            number = byte[0]
            if number not in heard:
                continue
            is_copy = copies.has(number)
            if is_stopping and (number in MILD or is_copy):
                continue
            if not is_stopping and self._will_save():
                self._report(number, _SAVING[signal.Signals(number)])
            elif not self.is_leaving.wait(_PATIENCE_SECONDS):  # else the end of the command says it
                self._report(number, "stopping now")
            is_stopping = is_stopping or number not in MILD

    def _report(self, number: int, words: str) -> None:
        with suppress(OSError):  # nobody reads any more
            self._acknowledge(f"received {signal.Signals(number).name}: {words}")


def write_at_once(sentence: str) -> None:
    """Write ``sentence`` to standard error without any buffer or lock; it replaces a terminal's live line."""
    start = "\r\x1b[2K" if os.isatty(2) else ""
    os.write(2, f"{start}{sentence}\n".encode())
