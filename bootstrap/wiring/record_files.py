"""The files of a run folder that a run writes as it goes: events, the audit, and records that were rejected."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.handlers.record_audit import RecordAudit
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.configs.secret_masking import mask
from holdfast.domain.checkpoints.roles import Role
from holdfast.domain.errors import StateError
from holdfast.domain.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from holdfast.bootstrap.wiring.container import Container
    from holdfast.configs.settings import TrainSettings


def open_rejections(container: Container, rank: int, stack: ExitStack, *, say: Callable[[str], object]) -> None:
    """Have records that cannot be used written to a file of this ``rank`` until ``stack`` ends."""
    settings: TrainSettings = container.settings()
    rejected = stack.enter_context(closing(JsonLines(RunLayout(settings.run.directory).rejected(rank))))

    def write(record: Mapping[str, object]) -> None:
        try:
            rejected.append(mask(record))
        except StateError as error:  # it is kept, and no reason for the data to end
            say(str(error))

    rejections = RejectedRecords(settings.data.on_error, write, known=rejected.read())
    container.rejections.override(providers.Object(rejections))


def open_records(
    container: Container, directory: Path, stack: ExitStack, *, say: Callable[[str], object]
) -> Callable[[Mapping[str, Any]], object]:
    """Have the audit written until ``stack`` ends; return what writes an event to ``events.jsonl``."""
    bus = container.event_bus()
    events = stack.enter_context(closing(JsonLines(RunLayout(directory).events)))
    stack.enter_context(container.audit().held())
    stack.callback(bus.subscribe(Event, RecordAudit(container.audit().record)))
    if not container.guard().allows(Role.DELETE):
        say("this run may not delete: what state_store.keep lets go stays until somebody else deletes it")
    return lambda event: events.append(mask(event))
