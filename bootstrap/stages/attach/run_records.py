"""Opens what the first rank of a run records beside metrics: events, samples, and the results of suites."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers.record_events import RecordSamples
from holdfast.application.handlers.record_metrics import TrackGoodput
from holdfast.application.handlers.run_suites import RunSuites
from holdfast.bootstrap.run_folder.layout import RunLayout, environment
from holdfast.bootstrap.stages.attach.suite_process import suite_process
from holdfast.bootstrap.stages.choose.hardware import memory_limit_of
from holdfast.bootstrap.stages.open_run.record_files import open_records
from holdfast.domain.fault_tolerance.goodput import TimeAccount, TimeCategory, TimeSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from holdfast.application.handlers.profile_steps import Compilations
    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.domain.fault_tolerance.goodput import Goodput


@final
@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run: ``write_event`` appends to ``events.jsonl``; without suites ``suites`` is None."""

    write_event: Callable[[Mapping[str, Any]], object]
    samples: RecordSamples
    suites: RunSuites | None


def open_run_records(
    parts: RunParts, stack: ExitStack, start: Mapping[str, object], *, report: Callable[[str], object]
) -> RunRecords | None:
    """Return the records of a run, open until ``stack`` ends; None on all ranks but the first.

    ``start`` describes this start of the run and is recorded with ``RunStarted``.
    """
    if parts.opened.process_group.rank:
        return None
    folder = parts.host.directory
    write = open_records(parts.opened, folder, stack, start, report=report)
    samples = RecordSamples(stack.enter_context(closing(JsonLines(RunLayout(folder).samples))))
    return RunRecords(write, samples, _open_suites(parts, stack))


def _open_suites(parts: RunParts, stack: ExitStack) -> RunSuites | None:
    """Return the handler of suites, whose process ends with ``stack``; None without suites."""
    if (process := suite_process(parts.settings, parts.host.directory)) is None:
        return None
    stack.callback(process.stop)
    records = stack.enter_context(closing(JsonLines(RunLayout(parts.host.directory).evaluations)))
    every, inbox, group = parts.settings.evaluation.harness.every, parts.opened.inbox, parts.opened.process_group
    return RunSuites(process, every, records, inbox, group, parts.event_bus.publish, show=parts.host.show)


def describe_start(parts: Built, excluded: str) -> Mapping[str, Any]:
    """Return the facts of a start for ``run.json``: sizes of a step and of the run, device, limits and environment.

    ``excluded`` is the digest of the documents that are left out. The memory limit is that of a rank, in bytes.
    """
    hardware = parts.trainable.hardware
    return {
        "batch_size": parts.settings.optimizer.num_rows,
        "excluded": excluded,
        "device": hardware.device,
        "parameters": hardware.num_parameters,
        "ranks": parts.process_group.size,
        "memory_limit": memory_limit_of(parts.hardware.get("optimizer.device")),
        "environment": environment(),
    }


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
