"""The storage tiers of checkpoints: the states of their copies, and the policy of moving them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.training.lr_schedule import Schedule
    from holdfast.domain.training.progress import Progress


class Tier(StrEnum):
    """A place for copies; each outlives more than the one before: the step, the process, the machine."""

    MEMORY = "memory"
    DISK = "disk"
    ARCHIVE = "archive"


class CopyState(StrEnum):
    """What a copy is; only a ready one counts, as it is complete and was verified."""

    PENDING = "pending"
    IN_PROGRESS = "in-progress"
    READY = "ready"
    DELETING = "deleting"
    DELETED = "deleted"
    FAILED = "failed"


_NEXT: Mapping[CopyState, frozenset[CopyState]] = MappingProxyType(
    {
        CopyState.PENDING: frozenset({CopyState.IN_PROGRESS, CopyState.DELETED}),
        CopyState.IN_PROGRESS: frozenset({CopyState.READY, CopyState.FAILED}),
        CopyState.READY: frozenset({CopyState.DELETING, CopyState.FAILED}),
        CopyState.DELETING: frozenset({CopyState.DELETED, CopyState.FAILED}),
        CopyState.DELETED: frozenset({CopyState.PENDING}),
        CopyState.FAILED: frozenset({CopyState.PENDING, CopyState.DELETING}),
    }
)


def advanced(state: CopyState, to: CopyState) -> CopyState:
    """Return ``to``, into which a copy may go from ``state``; raises ``ValueError`` if it may not."""
    if to not in _NEXT[state]:
        msg = f"a copy that is {state} cannot become {to}"
        raise ValueError(msg)
    return to


class Phase(StrEnum):
    """What a run is at, as far as copies are concerned."""

    STEADY = "steady"
    ANNEAL = "anneal"
    RECOVERY = "recovery"


def phase_at(progress: Progress, schedule: Schedule) -> Phase:
    """Return the phase of a run that goes on: the last stretch of a schedule that names one is the anneal."""
    is_annealing = getattr(schedule, "is_decaying_at", None)
    return Phase.ANNEAL if is_annealing is not None and is_annealing(progress) else Phase.STEADY


@dataclass(frozen=True, slots=True)
class CheckpointCopies:
    """A checkpoint and its copies; one that is protected keeps a ready copy, whatever moves.

    ``num_bytes`` is what a copy takes. ``is_held`` tells that its copy on disk is in use, or that somebody wants it
    there, ``is_verified`` that this process has seen each byte of that copy.
    """

    step: int
    copies: Mapping[Tier, CopyState]
    num_bytes: int = 0
    is_protected: bool = True
    is_held: bool = False
    is_verified: bool = False

    def is_ready_in(self, tier: Tier) -> bool:
        """Return whether a copy there counts."""
        return self.copies.get(tier) is CopyState.READY

    def may_leave(self, tier: Tier) -> bool:
        """Return whether the copy in ``tier`` may be deleted: another one is ready, or nobody needs any."""
        is_elsewhere = any(self.is_ready_in(other) for other in self.copies if other is not tier)
        return is_elsewhere or not self.is_protected or not self.is_ready_in(tier)

    def with_copy(self, tier: Tier, state: CopyState) -> CheckpointCopies:
        """Return it with the copy in ``tier`` become ``state``; raises ``ValueError`` for what must not happen."""
        if state is CopyState.DELETING and not self.may_leave(tier):
            msg = f"the copy of step {self.step} in {tier} is the last one that is ready"
            raise ValueError(msg)
        become = advanced(self.copies.get(tier, CopyState.DELETED), state)
        return replace(self, copies={**self.copies, tier: become})


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Two shares, so that what begins at ``enter`` goes on until ``leave``, and does not flutter around one of them."""

    enter: float = 0.85
    leave: float = 0.75

    def holds(self, share: float, *, held: bool) -> bool:
        """Return whether a thing that was ``held`` so far is so at ``share``."""
        return share >= (self.leave if held else self.enter)


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """Chooses the copies that leave a disk of ``max_bytes``: once it is nearly full, the oldest that are archived.

    At least ``min_verified`` verified copies stay, as do copies in use, and in recovery all copies.
    """

    max_bytes: int
    band: Hysteresis = Hysteresis()
    min_verified: int = 2

    def is_tight(self, placed: Sequence[CheckpointCopies], *, was_tight: bool) -> bool:
        """Return whether the disk is to be emptied, given whether it was to be so far."""
        used = sum(one.num_bytes for one in placed if one.is_ready_in(Tier.DISK))
        return self.band.holds(used / self.max_bytes, held=was_tight)

    def next_to_leave(self, placed: Sequence[CheckpointCopies], phase: Phase) -> CheckpointCopies | None:
        """Return the checkpoint whose copy on disk is to go from a tight one, None if none may."""
        local = sorted((one for one in placed if one.is_ready_in(Tier.DISK)), key=lambda one: one.step)
        staying = [one.step for one in local if one.is_verified][-self.min_verified :]
        if phase is Phase.RECOVERY or len(staying) < self.min_verified:
            return None
        archived = (one for one in local if one.is_ready_in(Tier.ARCHIVE) and one.may_leave(Tier.DISK))
        return next((one for one in archived if not one.is_held and one.step not in staying), None)
