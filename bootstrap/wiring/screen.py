"""The screen of a run: lines for a person, and the current phase."""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.configs.secret_masking import mask_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase

_SECONDS_BETWEEN_LINES = 10.0


@final
class Screen:
    """Shows lines by ``say`` (without it above the console's live line, or in a log), and phases in the console.

    Without a console a phase whose share is known is a line every ten seconds.
    """

    def __init__(
        self,
        console: Any = None,
        say: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self._say = say or (log if console is None else console.say)
        self._clock = clock
        self._next_line = math.inf

    def say(self, *lines: str) -> None:
        """Show ``lines``, without their secrets."""
        for line in lines:
            self._say(mask_text(line))

    def close(self) -> None:
        """Close the console, if there is one."""
        if self.console is not None:
            self.console.close()

    def show(self, phase: str, share: float | None = None, /) -> None:
        """Show the current phase, as a ``ShowPhase``."""
        if self.console is not None:
            self.console.show(phase, share)
        elif not share:
            self._next_line = self._clock() + _SECONDS_BETWEEN_LINES
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + _SECONDS_BETWEEN_LINES
            self.say(f"{phase}: {share:.0%}")


def open_screen(overrides: Mapping[str, Any], settings: TrainSettings, say: Callable[[str], object] | None) -> Screen:
    """Return the screen of a run: its console is the monitor ``console``, if the run has that one."""
    budget = settings.run.budget
    has_console = "monitors" not in overrides and any(section.kind == "console" for section in settings.monitors)
    console = (
        lazy("holdfast.adapters.monitor.console:ConsoleMonitor")(budget.steps, budget.tokens) if has_console else None
    )
    screen = Screen(console, say)
    screen.show("loading libraries")
    return screen


@contextmanager
def phases_shown() -> Iterator[ShowPhase]:
    """Give what shows phases on standard error within the block, for commands that train nothing."""
    console: Any = lazy("holdfast.adapters.monitor.console:ConsoleMonitor")(
        None, None, shortest_phase=_SECONDS_BETWEEN_LINES
    )
    try:
        yield console.show
    finally:
        console.close()


def log(line: str) -> None:
    """Log ``line`` where this process logs: by structlog if somebody has set that up, else by Python's own logging."""
    has_structlog: Any = lazy("structlog:is_configured")()
    logger: Any = lazy("structlog:get_logger")("holdfast") if has_structlog else logging.getLogger("holdfast")
    logger.info(line)
