"""The screen of a run: lines for a person, and the current phase."""

from __future__ import annotations

import logging
import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.phase import Amount, show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BEFORE_FIRST_LINE = 10.0


@final
class Screen:
    """Shows lines and the current phase.

    Lines go to ``report``, or without it above the console's live line, or without a console to a log. Phases are shown
    in the console. Without a console, a phase whose share is known is logged once a minute.
    """

    def __init__(
        self,
        console: Any = None,
        report: Callable[[str], object] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self._report = report or (log if console is None else console.say)
        self._clock = clock
        self._next_line = math.inf

    def say(self, *lines: str) -> None:
        """Show ``lines``, without their secrets."""
        for line in lines:
            self._report(mask_text(line))

    def limit(self, budget: Budget) -> None:
        """Let the console show the part of ``budget`` that is spent, and the time left."""
        if self.console is not None:
            self.console.limit(budget)

    def close(self) -> None:
        """Close the console, if there is one."""
        if self.console is not None:
            self.console.close()

    def show(self, phase: str, part: float | Amount | None = None, /) -> None:
        """Show the current phase; this method is a ``ShowPhase``."""
        share = part.share if isinstance(part, Amount) else part
        if self.console is not None:
            self.console.show(phase, part)
        elif not share:
            self._next_line = self._clock() + _SECONDS_BETWEEN_LINES
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + _SECONDS_BETWEEN_LINES
            self.say(f"{phase}: {share:.0%}")


def open_screen(
    overrides: Mapping[str, Any],
    settings: TrainSettings,
    report: Callable[[str], object] | None,
    *,
    is_quiet: bool = False,
) -> Screen:
    """Return the screen of a run; its console is the monitor ``console``, if the run has that monitor.

    If ``is_quiet``, the console shows problems only.
    """
    has_console = "monitors" not in overrides and any(section.kind == "console" for section in settings.monitors)
    console = lazy("holdfast.adapters.monitor.console:ConsoleMonitor")(is_quiet=is_quiet) if has_console else None
    screen = Screen(console, report)
    screen.show("loading libraries")
    return screen


@contextmanager
def phases_shown(*, is_quiet: bool = False) -> Iterator[ShowPhase]:
    """Give a function that shows phases on standard error within the block, for commands that do not train.

    If ``is_quiet``, it shows nothing.
    """
    if is_quiet:
        yield show_nothing
        return
    console: Any = lazy("holdfast.adapters.monitor.console:ConsoleMonitor")(shortest_phase=_SECONDS_BEFORE_FIRST_LINE)
    try:
        yield console.show
    finally:
        console.close()


def log(line: str) -> None:
    """Log ``line`` by structlog if it is configured in this process, else by Python's logging."""
    has_structlog: Any = lazy("structlog:is_configured")()
    logger: Any = lazy("structlog:get_logger")("holdfast") if has_structlog else logging.getLogger("holdfast")
    logger.info(line)


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
