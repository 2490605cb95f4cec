"""Opens a run: its processes, its bus and its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice.access_roles import guard_of
from holdfast.bootstrap.adapter_choice.state_stores import StoreRequest
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.bootstrap.stages.open_run.opened import Opened
from holdfast.bootstrap.stages.open_run.screen import ArchiveProgress

if TYPE_CHECKING:
    from holdfast.application.inbox import Inbox
    from holdfast.bootstrap.stages.request import Request
    from holdfast.ports.process_group import ProcessGroup


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
    return Opened(request, group, inbox, store, inner, audit, guard, progress)
