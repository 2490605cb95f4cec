"""Where commands wait for the loop."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, final

from domain.commands import StopRun

if TYPE_CHECKING:
    from domain.commands import Command


@final
class Inbox:
    """Takes commands from handlers, hosts and signals, in any thread; the loop drains it between steps.

    ``SimpleQueue.put`` is reentrant, which is what makes ``post`` safe inside a signal handler.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Command] = SimpleQueue()
        self.stop_requested = False

    def post(self, command: Command) -> None:
        """Leave ``command`` for the loop."""
        if isinstance(command, StopRun):
            self.stop_requested = True
        self._queue.put(command)

    def drain(self) -> list[Command]:
        """Take all commands, oldest first."""
        commands = []
        try:
            while True:
                commands.append(self._queue.get_nowait())
        except Empty:
            return commands

    def __bool__(self) -> bool:
        """Return whether a command waits."""
        return not self._queue.empty()
