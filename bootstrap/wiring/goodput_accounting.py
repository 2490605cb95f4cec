"""The accounting of a run's time, kept in its folder."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers.track_goodput import TrackGoodput
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.domain.fault_tolerance.goodput import TimeAccount, TimeCategory, TimeSample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from holdfast.application.handlers.watch_compilation import Compilations
    from holdfast.domain.fault_tolerance.goodput import Goodput

_WORDS = {
    TimeCategory.START_UP: "start-up",
    TimeCategory.DATA: "waiting for data",
    TimeCategory.SAVE: "saving",
    TimeCategory.EVALUATION: "evaluation",
    TimeCategory.RECOVERY: "recovery",
    TimeCategory.RESTART: "restarts",
    TimeCategory.LOST: "steps taken again",
}


def account_time(
    folder: Path, ledger: TimeAccount, stack: ExitStack, *, began: float, compilations: Compilations | None
) -> TrackGoodput:
    """Return the accounting of this start until ``stack`` ends, after the earlier starts recorded in ``folder``."""
    lines = stack.enter_context(closing(JsonLines(RunLayout(folder).goodput)))
    for mark in _marks(lines):
        ledger.add(mark)
    return TrackGoodput(
        ledger,
        lambda mark: lines.append(mark.to_json()),
        began=began,
        compile_seconds=lambda: 0.0 if compilations is None else compilations.seconds,
    )


def goodput_of(folder: Path) -> Goodput:
    """Return the goodput that the starts of the run in ``folder`` have recorded so far."""
    ledger = TimeAccount()
    with closing(JsonLines(RunLayout(folder).goodput)) as lines:
        for mark in _marks(lines):
            ledger.add(mark)
    return ledger.goodput


def sentence_of(goodput: Goodput) -> str:
    """Return the goodput for a person, with each category that took at least a thousandth of the time."""
    wall = goodput.wall_seconds
    rest = [
        f"{word} {goodput.seconds[kind] / wall:.1%}"
        for kind, word in _WORDS.items()
        if goodput.seconds[kind] >= wall / 1000
    ]
    times = "1 start" if goodput.starts == 1 else f"{goodput.starts} starts"
    return f"goodput: {goodput.share:.1%} of {wall:,.1f} s in {times}" + (f" ({', '.join(rest)})" if rest else "")


def _marks(lines: JsonLines) -> Iterator[TimeSample]:
    for record in lines.read():
        try:
            mark = TimeSample.from_json(record)
        except (KeyError, ValueError, TypeError, AttributeError):
            continue  # a line of another version: its seconds show up as part of a restart
        yield mark
