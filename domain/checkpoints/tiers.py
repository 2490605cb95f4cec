"""The storage tiers of checkpoints: the states of their copies, and the policy of moving them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.training.lr_schedule import Schedule
    from holdfast.domain.training.step_outcome import Progress


class Tier(StrEnum):
    """A storage tier for copies, in the order of durability: they outlive the step, the process, or the machine."""

    MEMORY = "memory"
    DISK = "disk"
    ARCHIVE = "archive"


class CopyState(StrEnum):
    """The state of a copy; only a ready copy counts, because it is complete and verified."""

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
    """Return ``to``, the next state of a copy in ``state``; raises ``ValueError`` for an illegal transition."""
    if to not in _NEXT[state]:
        msg = f"a copy that is {state} cannot become {to}"
        raise ValueError(msg)
    return to


class Phase(StrEnum):
    """The phase of a run, on which the copies to keep depend."""

    STEADY = "steady"
    ANNEAL = "anneal"
    RECOVERY = "recovery"


def phase_at(progress: Progress, schedule: Schedule) -> Phase:
    """Return the phase of a run in progress: the anneal is the last part of a schedule, if it has one."""
    is_annealing = getattr(schedule, "is_decaying_at", None)
    return Phase.ANNEAL if is_annealing is not None and is_annealing(progress) else Phase.STEADY


@dataclass(frozen=True, slots=True)
class CheckpointCopies:
    """A checkpoint and its copies; a protected checkpoint always has a ready copy, even while copies move.

    ``num_bytes`` is the size of a copy. ``is_held`` says that its copy on disk is in use or wanted there,
    ``is_verified`` that this process has verified each byte of that copy.
    """

    step: int
    copies: Mapping[Tier, CopyState]
    num_bytes: int = 0
    is_protected: bool = True
    is_held: bool = False
    is_verified: bool = False

    def is_ready_in(self, tier: Tier) -> bool:
        """Return whether the copy in ``tier`` is ready."""
        return self.copies.get(tier) is CopyState.READY

    def may_leave(self, tier: Tier) -> bool:
        """Return whether the copy in ``tier`` may be deleted: another copy is ready, or no copy is needed."""
        is_elsewhere = any(self.is_ready_in(other) for other in self.copies if other is not tier)
        return is_elsewhere or not self.is_protected or not self.is_ready_in(tier)

    def with_copy(self, tier: Tier, state: CopyState) -> CheckpointCopies:
        """Return the checkpoint with its copy in ``tier`` in ``state``; raises ``ValueError`` if that is illegal."""
        if state is CopyState.DELETING and not self.may_leave(tier):
            msg = f"the copy of step {self.step} in {tier} is the last one that is ready"
            raise ValueError(msg)
        become = advanced(self.copies.get(tier, CopyState.DELETED), state)
        return replace(self, copies={**self.copies, tier: become})


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Two thresholds: a state that begins at ``enter`` lasts until below ``leave``, to avoid frequent changes."""

    enter: float = 0.85
    leave: float = 0.75

    def holds(self, share: float, *, held: bool) -> bool:
        """Return whether the state is on at ``share``, given whether it was on (``held``) before."""
        return share >= (self.leave if held else self.enter)


@dataclass(frozen=True, slots=True)
class DiskBudget:
    """Chooses the copies to delete from a disk of ``max_bytes``: once it is nearly full, the oldest archived copies.

    At least ``min_verified`` verified copies stay, as do copies in use, and in recovery all copies.
    """

    max_bytes: int
    band: Hysteresis = Hysteresis()
    min_verified: int = 2

    def is_tight(self, placed: Sequence[CheckpointCopies], *, was_tight: bool) -> bool:
        """Return whether the disk has to be emptied, given whether it had to be before."""
        used = sum(one.num_bytes for one in placed if one.is_ready_in(Tier.DISK))
        return self.band.holds(used / self.max_bytes, held=was_tight)

    def next_to_leave(self, placed: Sequence[CheckpointCopies], phase: Phase) -> CheckpointCopies | None:
        """Return the checkpoint whose copy on disk is deleted next; None if no copy may be deleted."""
        local = sorted((one for one in placed if one.is_ready_in(Tier.DISK)), key=lambda one: one.step)
        staying = [one.step for one in local if one.is_verified][-self.min_verified :]
        if phase is Phase.RECOVERY or len(staying) < self.min_verified:
            return None
        archived = (one for one in local if one.is_ready_in(Tier.ARCHIVE) and one.may_leave(Tier.DISK))
        return next((one for one in archived if not one.is_held and one.step not in staying), None)
