"""The files of a run folder that a run writes as it goes: events, the audit, and records that were rejected."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.configs.secret_masking import mask
from holdfast.domain.checkpoints.roles import Role
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from holdfast.bootstrap.wiring.run_parts import OpeningParts
    from holdfast.configs.settings import TrainSettings


def open_rejections(
    settings: TrainSettings, rank: int, stack: ExitStack, *, say: Callable[[str], object]
) -> RejectedRecords:
    """Return the recorder of rejected records in the file of this ``rank``, which is closed when ``stack`` ends."""
    rejected = stack.enter_context(closing(JsonLines(RunLayout(settings.run.directory).rejected(rank))))

    def write(record: Mapping[str, object]) -> None:
        try:
            rejected.append(mask(record))
        except StateError as error:  # the record is buffered, and reading can continue
            say(str(error))

    return RejectedRecords(settings.data.on_error, write, known=rejected.read())


def open_records(
    opened: OpeningParts, directory: Path, stack: ExitStack, *, say: Callable[[str], object]
) -> Callable[[Mapping[str, Any]], object]:
    """Hold the audit open until ``stack`` ends; return the function that appends an event to ``events.jsonl``."""
    events = stack.enter_context(closing(JsonLines(RunLayout(directory).events)))
    stack.enter_context(opened.audit.held())
    if not opened.guard.allows(Role.DELETE):
        say("this run may not delete: checkpoints beyond state_store.keep stay until someone else deletes them")
    return lambda event: events.append(mask(event))
