"""Opens what the first rank of a run records beside metrics: events, samples, and the results of suites."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers.record_samples import RecordSamples
from holdfast.application.handlers.run_suites import RunSuites
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.record_files import open_records
from holdfast.bootstrap.wiring.suite_process import suite_process

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from holdfast.bootstrap.wiring.run_parts import RunParts


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
