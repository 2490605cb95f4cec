"""The checkpoints of a run, opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from holdfast.adapters.state_store.store_folder import AccessGuard
    from holdfast.application.inbox import Inbox
    from holdfast.bootstrap.run_folder.run_audit import Audit
    from holdfast.bootstrap.stages.open_run.screen import ArchiveProgress
    from holdfast.bootstrap.stages.request import Request
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import StateStore


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """The checkpoints of a run, with what guards and records their use.

    ``inner_store`` is the state store without the wrapper of the host program, if there is one. ``archive_progress``
    shows the uploads that training waits for.
    """

    request: Request
    process_group: ProcessGroup
    inbox: Inbox
    state_store: StateStore
    inner_store: StateStore
    audit: Audit
    guard: AccessGuard
    archive_progress: ArchiveProgress
