"""A base class that forwards to a state store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from holdfast.ports.state_store import CheckpointInfo, Loaded, RejectedCheckpoint, StateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.domain.checkpoints.retention import RollBackFloor
    from holdfast.ports.state_store import JoinedPart, OpenFile, Snapshot


class ForwardingStateStore(StateStore):
    """Stores checkpoints in ``inner``."""

    def __init__(self, inner: StateStore) -> None:
        self.inner = inner

    @property
    @override
    def keeps_shares(self) -> bool:
        return self.inner.keeps_shares

    @property
    @override
    def takes_shares(self) -> bool:
        return self.inner.takes_shares

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        return self.inner.save(snapshot)

    @override
    def contribute(self, snapshot: Snapshot) -> None:
        self.inner.contribute(snapshot)

    @override
    def leave_share(self, snapshot: Snapshot) -> None:
        self.inner.leave_share(snapshot)

    @override
    def complete_shares(self, num_ranks: int, joined: Callable[[], Sequence[JoinedPart]]) -> CheckpointInfo | None:
        return self.inner.complete_shares(num_ranks, joined)

    @override
    def load(self, *, at_most: int | None = None) -> Loaded:
        return self.inner.load(at_most=at_most)

    @override
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        return self.inner.restore(into, at_most=at_most)

    @override
    def supersede(self, step: int) -> None:
        self.inner.supersede(step)

    @override
    def list(self) -> Sequence[CheckpointInfo]:
        return self.inner.list()

    @override
    def tidy(self) -> None:
        self.inner.tidy()

    @override
    def spare(self, floor: RollBackFloor) -> None:
        self.inner.spare(floor)

    @override
    def scrub(self) -> Sequence[RejectedCheckpoint]:
        return self.inner.scrub()

    @override
    def flush(self) -> None:
        self.inner.flush()
