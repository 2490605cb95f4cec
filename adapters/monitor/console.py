"""Figures for a person: one live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from threading import Event, Thread
from typing import TYPE_CHECKING, Self, TextIO, final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from holdfast.domain.errors import TrainingError
from holdfast.domain.phase import BYTES, Amount
from holdfast.domain.sizes import shown_size
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

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
    are shown; ``limit`` may give it later. The figures are the
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
        budget: Budget | None = None,
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

    def limit(self, budget: Budget) -> None:
        """Show the share of ``budget`` that is spent, and the time left."""
        self._figures.budget = budget

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


_LONGEST_ESTIMATE = timedelta(days=9999).total_seconds()
_KEPT = 0.9
_SEPARATOR = " · "
_BARS = "▁▂▃▄▅▆▇█"
_MOST_VALUES = 64


@final
@dataclass(slots=True)
class Smoothed:
    """A mean in which each value has nine tenths of the weight of the next value."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """Include ``value`` in the average, unless it is NaN or infinite."""
        if math.isfinite(value):
            self.total = _KEPT * self.total + value
            self.weight = _KEPT * self.weight + 1.0

    @property
    def mean(self) -> float:
        """Return the mean, NaN before the first value."""
        return self.total / self.weight if self.weight else math.nan


@final
class Trend:
    """The course of a value since the start of the process, in at most 64 means of equally many values."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._stride = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Include ``value``, unless it is NaN or infinite."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._stride:
            return
        means = [*self._means, math.fsum(self._pending) / self._stride]
        self._pending = []
        if len(means) == _MOST_VALUES:
            means = [(first + second) / 2 for first, second in zip(means[::2], means[1::2], strict=True)]
            self._stride *= 2
        self._means = means  # replaced as a whole, as the writing thread reads it

    def sparkline(self, width: int) -> str:
        """Return the course in at most ``width`` characters, the lowest mean as ▁ and the highest as █.

        Empty before the third value.
        """
        means = self._means
        if len(means) < 3:
            return ""
        size = min(width, len(means))
        cuts = [number * len(means) // size for number in range(size + 1)]
        shown = [math.fsum(means[begin:end]) / (end - begin) for begin, end in pairwise(cuts)]
        low, high = min(shown), max(shown)
        scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(_BARS[round((value - low) * scale)] for value in shown)


@final
class Figures:
    """The latest figures of a run, and the speed of the last minutes."""

    def __init__(self, budget: Budget | None, step: int = 0) -> None:
        self.budget = budget
        self.step = step
        self.latest: Mapping[str, float] = {}
        self._samples: deque[tuple[float, float]] = deque(maxlen=120)
        self.losses = Trend()
        self._loss = Smoothed()
        self._seconds_per_token = Smoothed()
        self._evaluations: dict[int, float] = {}

    @property
    def _total_steps(self) -> int | None:
        return None if self.budget is None else self.budget.steps

    @property
    def _total_tokens(self) -> int | None:
        return None if self.budget is None else self.budget.tokens

    def rewound(self, step: int) -> Figures:
        """Return the figures of a run that continues from ``step``."""
        figures = Figures(self.budget, step)
        figures.losses = self.losses
        figures._evaluations = {at: loss for at, loss in self._evaluations.items() if at <= step}
        return figures

    def update(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        """Add the figures of a step."""
        self.step = step
        self._loss.add(metrics["loss"])
        self.losses.add(metrics["loss"])
        if (speed := metrics.get("tokens_per_second", 0.0)) > 0.0:
            self._seconds_per_token.add(1.0 / speed)
        self.latest = metrics
        if self._samples and now - self._samples[-1][0] < 1.0:
            return
        if (share := self.share) is not None:
            self._samples.append((now, share))

    def measure(self, step: int, loss: float) -> None:
        """Add the loss of an evaluation."""
        self._evaluations[step] = loss

    @property
    def share(self) -> float | None:
        """Return the fraction of the budget that is spent, from 0 to 1, or None without a budget."""
        spent = [
            done / total
            for done, total in ((self.step, self._total_steps), (self.latest.get("tokens", 0), self._total_tokens))
            if total and math.isfinite(done)
        ]
        return min(max(*spent, 0.0), 1.0) if spent else None

    def __str__(self) -> str:
        return _SEPARATOR.join(part for part, _ in self._parts())

    def within(self, width: int) -> str:
        """Return the figures that fit into ``width`` characters, the less important ones left out."""
        parts = list(self._parts())
        while len(parts) > 1 and _length(parts) > width:
            parts.remove(max(parts, key=lambda part: part[1]))
        return _SEPARATOR.join(part for part, _ in parts)

    def _parts(self) -> Sequence[tuple[str, int]]:
        """Return the figures, each with its rank: the figure with the highest rank is dropped first."""
        latest = self.latest  # the writing thread reads while ``update`` replaces it
        parts = (
            (self._position(), 0),
            (self._loss_now(), 1),
            (f"lr {latest['lr']:.1e}" if "lr" in latest else "", 4),
            (self._speed(), 2),
            (self._left(), 3),
            (self._evaluated(), 5),
            (shown_size(latest["memory_bytes"]) if "memory_bytes" in latest else "", 7),
            (f"{latest['rejected']:,.0f} rejected" if latest.get("rejected") else "", 6),
        )
        return [part for part in parts if part[0]]

    def _position(self) -> str:
        position = f"step {self.step}" + (f"/{self._total_steps}" if self._total_steps else "")
        if self._total_tokens:
            position += f"{_SEPARATOR}{self.latest.get('tokens', 0):,.0f}/{self._total_tokens:,} tokens"
        return position

    def _loss_now(self) -> str:
        if "loss" not in self.latest:
            return ""
        loss = self.latest["loss"]
        return f"loss {self._loss.mean if math.isfinite(loss) else loss:.3f}"

    def _speed(self) -> str:
        seconds = self._seconds_per_token.mean
        return f"{1.0 / seconds:,.0f} tokens/s" if seconds > 0.0 else ""

    def _evaluated(self) -> str:
        evaluations = dict(self._evaluations)
        if not evaluations:
            return ""
        last, best = evaluations[max(evaluations)], min(evaluations.values())
        return f"eval {last:.3f}" + (f" (best {best:.3f})" if best < last else "")

    def _left(self) -> str:
        if len(self._samples) < 2 or self.share == 1.0:
            return ""
        (start, share), (now, spent) = self._samples[0], self._samples[-1]
        if spent <= share:
            return ""
        seconds = (1.0 - spent) * (now - start) / (spent - share)
        return f"{timedelta(seconds=round(seconds))} left" if seconds < _LONGEST_ESTIMATE else ""


def _length(parts: Sequence[tuple[str, int]]) -> int:
    return len(_SEPARATOR.join(part for part, _ in parts))


_SOON = 2.0
"""Seconds after which the rate and the time left are shown."""
_LONGEST_STILL = 3.0
"""Seconds without progress after which they are hidden, unless progress takes longer."""
_LONGEST_PHASE = timedelta(days=999).total_seconds()


@final
@dataclass(frozen=True, slots=True)
class ShownPhase:
    """The activity of a run since ``began``, in seconds of the console's clock.

    ``now`` is the completed part, as a fraction or an amount, None if unknown, since ``changed``; ``first`` is the one
    at the beginning. While ``now`` stands still for long, no rate and no time left are shown.
    """

    name: str
    began: float
    first: float | Amount | None
    now: float | Amount | None
    changed: float
    longest: float = 0.0
    """The longest time between two changes of ``now``, in seconds."""

    def at(self, part: float | Amount | None, clock: float) -> Self:
        """Return the same phase with the part that is completed at ``clock``."""
        if part == self.now:
            return self
        return replace(self, now=part, changed=clock, longest=max(self.longest, clock - self.changed))

    @property
    def share(self) -> float | None:
        """Return the completed fraction, from 0 to 1, None if it is unknown."""
        return self.now.share if isinstance(self.now, Amount) else self.now

    def text(self, clock: float) -> str:
        """Return the phase at ``clock`` as a line."""
        share, seconds = self.share, clock - self.began
        parts = [self.name, *([] if share is None else [f"{share:.0%}"]), f"{seconds:.0f} s"]
        if seconds > _SOON and clock - self.changed <= max(_LONGEST_STILL, 2.0 * self.longest):
            parts += self._speed(seconds)
        return " · ".join(parts)

    def _speed(self, seconds: float) -> list[str]:
        """Return the rate, if an amount is known, and the time left, if a share is known."""
        parts, share = [], self.share
        if isinstance(self.now, Amount):
            rate = (self.now.done - _done(self.first)) / seconds
            parts += [f"{with_unit(rate, self.now.unit)}/s"] if rate > 0 else []
        if share:
            begun = _share(self.first)
            left = seconds * (1 - share) / (share - begun) if share > begun else _LONGEST_PHASE
            parts += [f"{_time(left)} left"] if left < _LONGEST_PHASE else []
        return parts


def with_unit(number: float, unit: str) -> str:
    """Return ``number`` with its ``unit``, bytes as ``shown_size`` does."""
    if unit == BYTES:
        return shown_size(number)
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:,.1f} {unit}"


def _done(part: float | Amount | None) -> float:
    return part.done if isinstance(part, Amount) else 0.0


def _share(part: float | Amount | None) -> float:
    return (part.share if isinstance(part, Amount) else part) or 0.0


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))


_PROBLEM = re.compile(
    r"\b(NOT|DROPPED|ROLLED BACK|damaged|failed|cannot|does not fit|differ|waited|behind"
    r"|was ended by|ended with code|not started again|did not take|no report was written)\b"
)
_SAVE = re.compile(r"\bcheckpoint-\d+ saved\b|· archived in |· moved from ")
_EVALUATION = re.compile(r"^step \d+ · evaluation ")


def is_problem(line: str) -> bool:
    """Return whether ``line`` reports a problem."""
    return _PROBLEM.search(line) is not None and _SAVE.search(line) is None


def style_of(line: str) -> str:
    """Return rich's style of ``line``: problems are red, evaluations bold, saves green; other lines have no style."""
    if _EVALUATION.match(line):
        return "bold cyan"
    if _SAVE.search(line):
        return "green"
    return "red" if is_problem(line) else ""
