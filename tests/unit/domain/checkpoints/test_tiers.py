from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.checkpoints.tiers import (
    CheckpointCopies,
    CopyState,
    DiskBudget,
    Hysteresis,
    Phase,
    Tier,
    advanced,
    phase_at,
)
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.lr_schedule import Constant, Span, WarmupStableDecay, straight_line
from holdfast.domain.training.step_outcome import Progress

STATES = st.sampled_from(CopyState)
COPIES = st.dictionaries(st.sampled_from(Tier), STATES)
ARCHIVED = st.just({Tier.DISK: CopyState.READY, Tier.ARCHIVE: CopyState.READY})
PLACED = st.lists(
    st.builds(CheckpointCopies, st.integers(1, 50), ARCHIVED | COPIES, st.integers(0, 9), *[st.booleans()] * 3),
    max_size=12,
    unique_by=lambda one: one.step,
)
BUDGETS = st.builds(DiskBudget, st.integers(1, 60), min_verified=st.integers(1, 3))


@given(copies=COPIES, moves=st.lists(st.tuples(st.sampled_from(Tier), STATES), max_size=40))
def test_no_path_deletes_the_last_ready_copy_of_what_is_protected(copies, moves):
    """Whatever is asked for in whatever order, a deletion never takes the only ready copy of a protected checkpoint."""
    placed = CheckpointCopies(7, copies)
    for tier, state in moves:
        before = [other for other in Tier if placed.is_ready_in(other)]
        try:
            placed = placed.with_copy(tier, state)
        except ValueError:
            assert [other for other in Tier if placed.is_ready_in(other)] == before
            continue
        after = [other for other in Tier if placed.is_ready_in(other)]
        assert after or not before or state is CopyState.FAILED


@given(st.lists(STATES, max_size=30))
def test_a_copy_counts_only_behind_a_whole_transfer(wanted):
    """On every way from nothing to a ready copy lies a transfer, and from a ready one to nothing a deletion."""
    state, way = CopyState.DELETED, [CopyState.DELETED]
    for to in wanted:
        try:
            state = advanced(state, to)
        except ValueError:
            continue
        way.append(state)
    for before, after in pairwise(way):
        assert after is not CopyState.READY or before is CopyState.IN_PROGRESS
        assert after is not CopyState.DELETED or before in {CopyState.DELETING, CopyState.PENDING}
        assert before is not CopyState.READY or after in {CopyState.DELETING, CopyState.FAILED}


@given(placed=PLACED, budget=BUDGETS)
def test_a_disk_keeps_enough_to_go_on_from(placed, budget):
    """Emptied step by step, a disk keeps the fewest verified copies, what is held, and what lies nowhere else."""
    gone = []
    while (one := budget.next_to_leave(placed, Phase.STEADY)) is not None:
        assert one.is_ready_in(Tier.ARCHIVE)
        assert not one.is_held
        gone.append(one.step)
        copies = {**one.with_copy(Tier.DISK, CopyState.DELETING).copies, Tier.DISK: CopyState.DELETED}
        placed = [replace(other, copies=copies) if other.step == one.step else other for other in placed]
    assert gone == sorted(set(gone))
    left = [other for other in placed if other.is_ready_in(Tier.DISK)]
    assert not gone or sum(other.is_verified for other in left) >= budget.min_verified


@given(placed=PLACED, budget=BUDGETS)
def test_nothing_is_deleted_in_recovery(placed, budget):
    """A run that has not saved since it went on keeps every copy that it might need."""
    assert budget.next_to_leave(placed, Phase.RECOVERY) is None


@given(shares=st.lists(st.floats(0, 1.5), max_size=30))
def test_a_band_does_not_flutter(shares):
    """It begins at 85 % at the earliest, ends below 75 %, and between the two it stays as it was."""
    held = False
    for share in shares:
        after = Hysteresis().holds(share, held=held)
        if 0.75 <= share < 0.85:
            assert after == held
        else:
            assert after == (share >= 0.85)
        held = after


def test_a_tight_disk_is_emptied_until_it_is_not():
    """With a budget of ten, the tenth of nine bytes begins it and the eighth ends it."""
    placed = [CheckpointCopies(step, {Tier.DISK: CopyState.READY}, num_bytes=1) for step in range(9)]
    budget = DiskBudget(10)
    assert [budget.is_tight(placed[:count], was_tight=False) for count in (7, 8, 9)] == [False, False, True]
    assert [budget.is_tight(placed[:count], was_tight=True) for count in (7, 8, 9)] == [False, True, True]


@pytest.mark.parametrize(("step", "phase"), [(0, Phase.STEADY), (90, Phase.STEADY), (91, Phase.ANNEAL)])
def test_the_last_stretch_of_wsd_is_the_anneal(step, phase):
    """Steps whose rate decays at the end of a run are the anneal; a schedule without such a stretch has none."""
    schedule = WarmupStableDecay(1.0, Span(10), 0.0, straight_line, Budget(steps=100), Span(10))
    assert phase_at(Progress(step=step), schedule) is phase
    assert phase_at(Progress(step=step), Constant(1.0, Span(10))) is Phase.STEADY
