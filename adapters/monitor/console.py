"""Figures for a person: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from contextlib import nullcontext
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO, final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from domain.errors import TrainingError
from ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import RenderableType

_REFRESH_SECONDS = 0.25
_PLAIN_LINE_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_WAITING_LINES = 1000
_LONGEST_ESTIMATE = timedelta(days=9999).total_seconds()
_CONTROL_CHARACTERS = dict.fromkeys(code for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t")


@final
class ConsoleMonitor(Monitor):
    """Shows step, loss, tokens a second, memory in use and the time that is left, and each evaluation on its own line.

    In a terminal one line is redrawn four times a second; elsewhere (a file, a pipe, a terminal without cursor) a line
    is printed at most every ten seconds, without control characters. ``file`` is standard error unless given.
    Either budget may be None. The figures are read from the metrics ``loss``, ``tokens`` (since the run's start),
    ``tokens_per_second``, ``memory_bytes``, ``rejected`` (shown unless 0), ``eval_loss`` and ``eval_bits_per_byte``;
    others are not shown.

    A thread of its own writes, so a terminal that is held (Ctrl-S) or a pipe that nobody reads does not block the loop:
    the oldest of 1,000 waiting lines are dropped. A console that is gone raises ``TrainingError`` once.
    What was printed cannot be taken back by ``rewind``.
    """

    def __init__(
        self,
        total_steps: int | None,
        total_tokens: int | None,
        *,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file or sys.stderr
        self._clock = clock
        self._figures = _Figures(total_steps, total_tokens)
        self._live = _live_line(self._file, self._render)
        self._lines: deque[str] = deque(maxlen=_WAITING_LINES)
        self._next_plain_line = -math.inf
        self._shown_step = -1
        self._thread: Thread | None = None
        self._closing = Event()
        self._error: Exception | None = None

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._closing.is_set():
            return
        if "eval_loss" in metrics:
            self.say(_evaluation(step, metrics))
        if "loss" in metrics:
            now = self._clock()
            self._figures.update(step, dict(metrics), now)
            if self._live is None and now >= self._next_plain_line:
                self._next_plain_line = now + _PLAIN_LINE_SECONDS
                self._say_figures()
        self._start()

    @override
    def rewind(self, step: int) -> None:
        self._figures = self._figures.rewound(step)
        self._start()

    def say(self, text: str) -> None:
        """Print ``text`` above the live line; after ``close`` it is simply printed."""
        if not self._closing.is_set():
            self._lines.append(text)
            self._start()
        elif self._error is None:
            _print(text, self._file)

    @override
    def close(self) -> None:
        if self._closing.is_set():
            return
        if self._live is None and self._figures.latest and self._figures.step != self._shown_step:
            self._say_figures()
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _say_figures(self) -> None:
        self._shown_step = self._figures.step
        self._lines.append(str(self._figures))

    def _start(self) -> None:
        if self._error is not None and not self._closing.is_set():
            self._closing.set()
            msg = f"the console takes no more lines ({self._error}); training goes on without them"
            raise TrainingError(msg) from self._error
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
                _print(line, self._file)
            else:
                self._live.console.print(Text(_clean(line, self._file)), soft_wrap=True)
        if self._live is not None:
            self._live.refresh()

    def _render(self) -> RenderableType:
        figures = self._figures
        text = Text(str(figures), no_wrap=True, overflow="ellipsis")
        share = figures.share
        if share is None:
            return text
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=1.0, completed=share, width=8), text)
        return grid


@final
class _Figures:
    """The latest figures, and how fast the budget was spent in the last minutes."""

    def __init__(self, total_steps: int | None, total_tokens: int | None, step: int = 0) -> None:
        self._total_steps = total_steps
        self._total_tokens = total_tokens
        self.step = step
        self.latest: Mapping[str, float] = {}
        self._samples: deque[tuple[float, float]] = deque(maxlen=120)

    def rewound(self, step: int) -> _Figures:
        return _Figures(self._total_steps, self._total_tokens, step)

    def update(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        self.step, self.latest = step, metrics
        if self._samples and now - self._samples[-1][0] < 1.0:
            return
        if (share := self.share) is not None:
            self._samples.append((now, share))

    @property
    def share(self) -> float | None:
        """Return the share of the budget that is spent, from 0 to 1, None if there is no budget."""
        spent = [
            done / total
            for done, total in ((self.step, self._total_steps), (self.latest.get("tokens", 0), self._total_tokens))
            if total and math.isfinite(done)
        ]
        return min(max(*spent, 0.0), 1.0) if spent else None

    def __str__(self) -> str:
        return " · ".join(part for part in self._parts() if part)

    def _position(self) -> str:
        position = f"step {self.step}" + (f"/{self._total_steps}" if self._total_steps else "")
        if self._total_tokens:
            position += f" · {self.latest.get('tokens', 0):,.0f}/{self._total_tokens:,} tokens"
        return position

    def _parts(self) -> tuple[str, ...]:
        latest = self.latest  # the writing thread reads while ``update`` replaces it
        return (
            self._position(),
            f"loss {latest['loss']:.3f}" if "loss" in latest else "",
            f"{latest['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in latest else "",
            self._left(),
            f"{latest['memory_bytes'] / 2**30:.1f} GiB" if "memory_bytes" in latest else "",
            f"{latest['rejected']:,.0f} rejected" if latest.get("rejected") else "",
        )

    def _left(self) -> str:
        if len(self._samples) < 2:
            return ""
        (start, share), (now, spent) = self._samples[0], self._samples[-1]
        if spent <= share:
            return ""
        seconds = (1.0 - spent) * (now - start) / (spent - share)
        return f"{timedelta(seconds=round(seconds))} left" if seconds < _LONGEST_ESTIMATE else ""


def _evaluation(step: int, metrics: Mapping[str, float]) -> str:
    line = f"step {step} · evaluation {metrics['eval_loss']:.3f} nats/token"
    if "eval_bits_per_byte" in metrics:
        line += f" · {metrics['eval_bits_per_byte']:.2f} bits per byte"
    return line


def _live_line(file: TextIO, render: Callable[[], RenderableType]) -> Live | None:
    if not file.isatty():
        return None
    console = Console(file=file, force_terminal=True)
    if console.is_dumb_terminal:
        return None
    standard = file in (sys.stdout, sys.stderr)  # what others print there goes above the line
    return Live(
        console=console,
        get_renderable=render,
        auto_refresh=False,
        redirect_stdout=standard,
        redirect_stderr=standard,
    )


def _print(text: str, file: TextIO) -> None:
    file.write(f"{_clean(text, file)}\n")
    file.flush()


def _clean(text: str, file: TextIO) -> str:
    encoding = file.encoding or "utf-8"
    return text.translate(_CONTROL_CHARACTERS).encode(encoding, "replace").decode(encoding)
