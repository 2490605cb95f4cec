"""Figures for a person: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from contextlib import nullcontext
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO, final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from holdfast.adapters.monitor.console_figures import Figures
from holdfast.adapters.monitor.console_phase import ShownPhase
from holdfast.adapters.monitor.console_style import is_problem, style_of
from holdfast.domain.errors import TrainingError
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import RenderableType

    from holdfast.domain.phase import Amount
    from holdfast.domain.training.budget import Budget

_REFRESH_SECONDS = 0.25
_PLAIN_LINE_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
_WAITING_LINES = 1000
_SHORTEST_BAR, _LONGEST_BAR = 4, 24
_SHORTEST_SPARKLINE, _LONGEST_SPARKLINE, _BAR_BESIDE_IT = 6, 20, 12
_CONTROL_CHARACTERS = dict.fromkeys(code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t")


@final
class ConsoleMonitor(Monitor):
    """Shows step, loss, learning rate, tokens per second and the time left, and each evaluation on its own line.

    In a terminal one line is redrawn four times a second, with as many figures as fit and, if there is room, a
    sparkline of the loss. Above it problems, saves and evaluations have colours, unless NO_COLOR is set. Elsewhere (a
    file, a pipe, a terminal without cursor) a line with the time of day is printed at most once a minute, without
    control characters, and one for each phase longer than ``shortest_phase`` seconds. If ``is_quiet``, only lines that
    report a problem are shown. ``file`` is standard error by default. Without a ``budget`` no share and no time left
    are shown; its steps may be decided later. The figures are the
    metrics ``loss`` and ``tokens_per_second`` (both smoothed over about ten steps), ``lr``, ``tokens`` (since the run's
    start), ``memory_bytes``, ``rejected`` (shown unless 0), ``eval_loss``, ``eval_bits_per_byte`` and
    ``eval_reward_accuracy``; other metrics are not shown.

    A separate thread writes, so a stopped terminal (Ctrl-S) or a full pipe does not block the loop: if more than 1,000
    lines wait, the oldest are dropped. If the console can no longer be written to, ``record`` or ``rewind`` raises
    ``TrainingError`` once; ``say`` and ``show``, which training itself calls, raise nothing.
    ``close`` waits at most ``close_seconds`` for that thread.
    ``rewind`` does not remove printed lines.
    """

    def __init__(
        self,
        budget: Budget | None,
        *,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        stamp: Callable[[], str] = lambda: time.strftime("%H:%M:%S "),
        shortest_phase: float = 1.0,
        close_seconds: float = _CLOSE_SECONDS,
        is_quiet: bool = False,
    ) -> None:
        self._file = file or sys.stderr
        self._clock = clock
        self._stamp = stamp
        self._shortest_phase = shortest_phase
        self._close_seconds = close_seconds
        self._is_quiet = is_quiet
        self._figures = Figures(budget)
        self._phase: ShownPhase | None = None
        self._live: Live | None = None
        self._lines: deque[str] = deque(maxlen=_WAITING_LINES)
        self._next_plain_line = -math.inf
        self._next_phase_line = math.inf
        self._shown_step = -1
        self._thread: Thread | None = None
        self._closing = Event()
        self._error: Exception | None = None
        self._has_figures = False
        self._live = None if is_quiet else _live_line(self._file, self._render)

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._closing.is_set() or self._is_quiet:
            return
        if "eval_loss" in metrics:
            self._figures.measure(step, metrics["eval_loss"])
            self.say(_evaluation(step, metrics))
        if "loss" in metrics:
            now = self._clock()
            self._figures.update(step, dict(metrics), now)
            self._has_figures = True
            if self._live is None and now >= self._next_plain_line:
                self._next_plain_line = now + _PLAIN_LINE_SECONDS
                self._say_figures()
        self._raise_error()
        self._start()

    @override
    def rewind(self, step: int) -> None:
        self._figures = self._figures.rewound(step)
        self._has_figures = True
        self._raise_error()
        self._start()

    def say(self, text: str) -> None:
        """Print ``text`` above the live line; after ``close`` there is no live line."""
        if self._is_quiet and not is_problem(text):
            return
        if not self._closing.is_set():
            self._lines.append(text)
            self._start()
        elif self._error is None:
            try:
                self._print(text)
            except (OSError, ValueError) as error:
                self._error = error

    def show(self, phase: str, share: float | Amount | None = None) -> None:
        """Show ``phase`` and the part that is done in place of the figures; an empty name shows the figures again."""
        if self._is_quiet:
            return
        before, now = self._phase, self._clock()
        is_new = before is None or before.name != phase
        if not phase:
            self._phase = None
        elif before is None or is_new:
            self._phase = ShownPhase(phase, now, share, share, now)
        else:
            self._phase = before.at(share, now)
        if is_new:
            self._next_phase_line = now + self._shortest_phase if phase else math.inf
        if not self._closing.is_set():
            self._start()

    @override
    def close(self) -> None:
        if self._closing.is_set():
            return
        self._phase = None
        if self._live is None and self._figures.latest and self._figures.step != self._shown_step:
            self._say_figures()
        if self._live is not None and not self._has_figures:
            self._live.transient = True
        self._closing.set()
        if self._thread is not None:
            self._thread.join(self._close_seconds)

    def _say_figures(self) -> None:
        self._shown_step = self._figures.step
        self._lines.append(str(self._figures))

    def _raise_error(self) -> None:
        if self._error is not None and not self._closing.is_set():
            self._closing.set()
            msg = f"the console cannot be written to ({self._error}); training continues without it"
            raise TrainingError(msg) from self._error

    def _start(self) -> None:
        if self._thread is None and not self._closing.is_set():
            self._thread = Thread(target=self._write, name="console", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        try:
            with self._live or nullcontext():
                while not self._closing.wait(_REFRESH_SECONDS):
                    self._draw()
                self._draw()
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self._error = error

    def _draw(self) -> None:
        while self._lines:
            line = self._lines.popleft()
            if self._live is None:
                self._print(line)
            else:
                self._live.console.print(Text(_clean(line, self._file), style=style_of(line), overflow="fold"))
        if self._live is not None:
            self._live.refresh()
        elif (phase := self._phase) is not None and (now := self._clock()) >= self._next_phase_line:
            self._next_phase_line = now + _PLAIN_LINE_SECONDS
            self._print(phase.text(now))

    def _print(self, text: str) -> None:
        self._file.write(f"{self._stamp()}{_clean(text, self._file)}\n")
        self._file.flush()

    def _render(self) -> RenderableType:
        if self._live is None:
            return Text("")
        width, phase = self._live.console.width - 2, self._phase
        share = self._figures.share if phase is None else phase.share
        is_utf = self._live.console.encoding.startswith("utf")
        text = Text(no_wrap=True, overflow="ellipsis")
        if phase is not None:
            text.append(phase.text(self._clock()))
        elif self._has_figures:
            text.append(self._figures.within(width))
            self._append_sparkline(text, width - 1 - _BAR_BESIDE_IT if is_utf else 0)
        if self._closing.is_set():
            return _row(text, share, width) if text else Text("")
        frames = "⠋⠙⠹⠸⠼⠴⠦⠧" if is_utf else "|/-\\"
        return _row(text, share, width, frames[int(time.monotonic() / _REFRESH_SECONDS) % len(frames)])

    def _append_sparkline(self, text: Text, width: int) -> None:
        room = min(width - len(text) - 1, _LONGEST_SPARKLINE)
        if room >= _SHORTEST_SPARKLINE and (line := self._figures.losses.sparkline(room)):
            text.append(f" {line}", style="cyan")


def _row(text: Text, share: float | None, width: int, *before: str) -> RenderableType:
    """Return one line of ``text``, after a progress bar if there is room for it."""
    bar = min(width - len(text) - 1, _LONGEST_BAR)
    grid = Table.grid(padding=(0, 1))
    if share is None or bar < _SHORTEST_BAR:
        grid.add_row(*before, text)
    else:
        grid.add_row(*before, ProgressBar(total=1.0, completed=share, width=bar), text)
    return grid


def _evaluation(step: int, metrics: Mapping[str, float]) -> str:
    unit = "pair" if "eval_reward_accuracy" in metrics else "token"
    line = f"step {step} · evaluation {metrics['eval_loss']:.3f} nats/{unit}"
    if unit == "pair":
        line += f" · {metrics['eval_reward_accuracy']:.1%} of the pairs in the right order"
    if "eval_bits_per_byte" in metrics:
        line += f" · {metrics['eval_bits_per_byte']:.2f} bits per byte"
    return line


def _live_line(file: TextIO, render: Callable[[], RenderableType]) -> Live | None:
    if not file.isatty():
        return None
    console = Console(file=file, force_terminal=True)
    if console.is_dumb_terminal:
        return None
    standard = file in (sys.stdout, sys.stderr)  # other output to the same stream appears above the line
    return Live(
        console=console,
        get_renderable=render,
        auto_refresh=False,
        redirect_stdout=standard,
        redirect_stderr=standard,
    )


def _clean(text: str, file: TextIO) -> str:
    encoding = file.encoding or "utf-8"
    return text.translate(_CONTROL_CHARACTERS).encode(encoding, "replace").decode(encoding)
