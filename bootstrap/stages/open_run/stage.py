"""Opens the checkpoints of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.adapter_choice.encryption_keys import guard_of
from holdfast.bootstrap.adapter_choice.state_stores import StoreRequest
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.bootstrap.stages.open_run.screen import ArchiveProgress

if TYPE_CHECKING:
    from holdfast.adapters.state_store.store_folder import AccessGuard
    from holdfast.application.inbox import Inbox
    from holdfast.bootstrap.run_folder.run_audit import Audit
    from holdfast.bootstrap.stages.request import Request
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import StateStore


def open_run(request: Request, group: ProcessGroup, inbox: Inbox) -> Opened:
    """Return the opened checkpoints of the run of ``request``; commands for the run are posted to ``inbox``."""
    section, progress = request.settings.state_store, ArchiveProgress(request.show)
    audit = audit_of(request.directory, section)
    guard = guard_of(section, audit)
    store, inner = request.ports.state_store(
        StoreRequest(
            section,
            request.settings.run,
            request.directory,
            inbox,
            request.report,
            group.rank,
            guard,
            progress.count,
        )
    )
    return Opened(group, inbox, store, inner, audit, guard, progress)


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """The checkpoints of a run, with what guards and records their use.

    ``inner_store`` is the state store without the wrapper of the host program, if there is one. ``archive_progress``
    shows the uploads that training waits for.
    """

    process_group: ProcessGroup
    inbox: Inbox
    state_store: StateStore
    inner_store: StateStore
    audit: Audit
    guard: AccessGuard
    archive_progress: ArchiveProgress
