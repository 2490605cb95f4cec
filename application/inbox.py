"""The queue of commands for the loop."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import StopRun

if TYPE_CHECKING:
    from holdfast.domain.commands import Command


@final
class Inbox:
    """Takes commands from handlers, hosts and signals, in any thread; the loop drains it between steps.

    ``SimpleQueue.put`` is reentrant, which makes ``post`` safe in a signal handler.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Command] = SimpleQueue()
        self.stop_requested = False
        self.first_stop: StopRun | None = None
        """The first request to end the run."""
        self.signal: int | None = None
        """The first signal that asked the run to stop."""
        self._signalled_at: float | None = None

    def post(self, command: Command) -> None:
        """Queue ``command`` for the loop."""
        if isinstance(command, StopRun):
            self.first_stop = self.first_stop or command
            self.stop_requested = True
            if command.signal is not None and self._signalled_at is None:
                self.signal, self._signalled_at = command.signal, time.monotonic()
        self._queue.put(command)

    @property
    def seconds_since_signal(self) -> float | None:
        """Return the seconds since a signal first asked the run to stop, None if none did."""
        return None if self._signalled_at is None else time.monotonic() - self._signalled_at

    def drain(self) -> list[Command]:
        """Take all commands, oldest first."""
        commands = []
        try:
            while True:
                commands.append(self._queue.get_nowait())
        except Empty:
            return commands

    def __bool__(self) -> bool:
        """Return whether a command is waiting."""
        return not self._queue.empty()
