"""The files that a run writes continuously in its folder: events, the audit, and rejected records."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.configs.secret_masking import mask
from holdfast.domain.checkpoints.retention import Role
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from holdfast.bootstrap.stages.open_run.stage import Opened
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.settings import TrainSettings


def open_rejections(
    settings: TrainSettings, rank: int, stack: ExitStack, *, report: Callable[[str], object]
) -> RejectedRecords:
    """Return the recorder that writes rejected records to the file of this ``rank``, until ``stack`` closes it."""
    rejected = stack.enter_context(closing(JsonLines(RunLayout(settings.run.directory).rejected(rank))))

    def write(record: Mapping[str, object]) -> None:
        try:
            rejected.append(mask(record))
        except StateError as error:  # the record is buffered, and reading can continue
            report(str(error))

    return rejections_of(settings.data, write, known=rejected.read())


def rejected_in(layout: RunLayout) -> Iterator[Mapping[str, Any]]:
    """Yield the rejected records that the ranks of a run have listed; one that several of them met, once."""
    known: set[tuple[str, str]] = set()
    for path in sorted(layout.root.glob("rejected*.jsonl")):
        for record in JsonLines(path).read():
            place = str(record.get("unit")), str(record.get("position"))
            if place not in known:
                known.add(place)
                yield record


def rejections_of(
    data: FeedSettings,
    write: Callable[[Mapping[str, object]], object] = lambda _: None,
    known: Iterable[Mapping[str, object]] = (),
) -> RejectedRecords:
    """Return the recorder of rejected records by the settings; its arguments are those of ``RejectedRecords``."""
    return RejectedRecords(data.on_error, write, known, hides_details=data.is_encrypted, is_strict=data.strict)


def open_records(
    opened: Opened,
    directory: Path,
    stack: ExitStack,
    start: Mapping[str, object],
    *,
    report: Callable[[str], object],
) -> Callable[[Mapping[str, Any]], object]:
    """Hold the audit open until ``stack`` ends; return the function that appends an event to ``events.jsonl``.

    ``start`` describes this start of the run and is recorded with ``RunStarted``.
    """
    events = stack.enter_context(closing(JsonLines(RunLayout(directory).events)))
    stack.enter_context(opened.audit.held())
    if not opened.guard.allows(Role.DELETE):
        report("this run may not delete: checkpoints beyond state_store.keep stay until someone else deletes them")
    return lambda event: events.append(mask({**event, **start} if event["event"] == "RunStarted" else event))
