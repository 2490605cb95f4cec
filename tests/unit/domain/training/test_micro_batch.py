import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import SplitBatch
from holdfast.domain.events import BatchSplit, MemoryExhausted, StepCompleted
from holdfast.domain.training.micro_batch import MicroBatchPolicy, MicroBatchState
from holdfast.domain.training.step_outcome import Progress, StepOutcome

OUTCOME = StepOutcome(
    losses=[1.0], num_targets=1, num_tokens=1, grad_norm=1.0, learning_rate=0.1, micro_batch=8, step_seconds=0.1
)


@pytest.mark.parametrize(
    ("batch_rows", "most", "expected"),
    [
        (8, 8, [8, 4, 2, 1]),
        (12, 12, [12, 6, 3, 2, 1]),
        (7, 7, [7, 1]),
        (8, 3, [3, 2, 1]),
        (360, 360, [360, 180, 90, 45]),
    ],
)
def test_sizes_that_fall_short_are_at_least_halved_and_divide_the_batch(batch_rows, most, expected):
    """The next size is the largest divisor of the batch that is at most half, rounded up, of the one before."""
    policy, known = MicroBatchPolicy(most, batch_rows), MicroBatchState(most)
    found = [most]
    while found[-1] > 1:
        known = policy.after_shortage(known, found[-1])
        found.append(known.rows)
    assert found[: len(expected)] == expected


@given(
    batch_rows=st.integers(1, 400),
    share=st.integers(1, 400),
    grow_after=st.integers(0, 5),
    max_shortages=st.integers(1, 3),
    room=st.lists(st.integers(1, 400), min_size=1, max_size=200),
)
def test_shortages_end_whatever_memory_does(batch_rows, share, grow_after, max_shortages, room):
    """A size falls short only so often, each size divides the batch or is the first, and none is above the first."""
    most = min(batch_rows, share)
    policy = MicroBatchPolicy(most, batch_rows, grow_after=grow_after, max_shortages=max_shortages)
    known, shortages = MicroBatchState(most), 0
    for fits in room:
        while known.rows > max(1, fits):
            known = policy.after_shortage(known, known.rows)
            shortages += 1
        assert known.rows == most or batch_rows % known.rows == 0
        assert 1 <= known.rows <= most
        known = policy.after_step(known, is_quiet=True)
    assert max(known.shortages.values(), default=0) <= max_shortages
    assert shortages <= max_shortages * len(policy.sizes)


def test_a_larger_size_is_tried_after_quiet_steps_and_then_less_and_less_often():
    """The wait for a size that did not fit doubles, and after the third time it is not tried again."""
    policy, known = MicroBatchPolicy(8, 8, grow_after=10), MicroBatchState(8)
    waits = []
    for _ in range(3):
        known, steps = policy.after_shortage(known, 8), 0
        while known.rows < 8 and steps < 1000:
            known, steps = policy.after_step(known, is_quiet=True), steps + 1
        waits.append(steps)
    assert waits == [10, 20, 1000]
    assert known.rows == 4


def test_steps_that_came_close_to_a_shortage_are_not_quiet():
    """A step in which the allocator had to give memory back begins the count anew."""
    policy = MicroBatchPolicy(8, 8, grow_after=3)
    known = policy.after_shortage(MicroBatchState(8), 8)
    for is_quiet in (True, True, False, True, True):
        known = policy.after_step(known, is_quiet=is_quiet)
    assert known.rows == 4
    assert policy.after_step(known, is_quiet=True).rows == 8


class Adapted:
    """A handler with what it asked for and what it remembered."""

    def __init__(self, most=8, *, grow_after=3):
        self.inbox, self.kept = Inbox(), []
        policy = MicroBatchPolicy(most, most, grow_after=grow_after)
        self.memory_retries = 0
        self.handler = AdaptMicroBatch(
            policy, MicroBatchState(most), self.inbox, self.kept.append, memory_retries=lambda: self.memory_retries
        )

    def runs_short(self, rows):
        """Return what a shortage at ``rows`` is answered with."""
        self.handler.on_shortage(MemoryExhausted(Progress(), rows, "no room"))
        return self.inbox.drain()

    def steps(self, number, memory_retries=0):
        """Return what so many steps are answered with."""
        self.memory_retries = memory_retries
        for _ in range(number):
            self.handler.on_step(StepCompleted(Progress(), OUTCOME))
        return self.inbox.drain()


def test_a_shortage_is_answered_with_fewer_rows_and_remembered():
    """Each shortage asks for fewer rows and is kept, down to one row, where there is no remedy."""
    adapted = Adapted()
    assert [adapted.runs_short(rows) for rows in (8, 4, 2, 1)] == [
        [SplitBatch(4)],
        [SplitBatch(2)],
        [SplitBatch(1)],
        [],
    ]
    assert adapted.kept[-1] == MicroBatchState(1, {8: 1, 4: 1, 2: 1, 1: 1})


def test_a_larger_size_is_remembered_as_too_large_until_a_step_has_proved_it():
    """A process that is killed for its larger micro-batch does not begin with it again; after a step it would."""
    adapted = Adapted()
    adapted.runs_short(8)
    assert adapted.steps(2) == []
    assert adapted.steps(1) == [SplitBatch(8)]
    assert adapted.kept[-1] == MicroBatchState(4, {8: 2})
    adapted.steps(1)
    assert (adapted.kept[-1].rows, adapted.kept[-1].shortages) == (8, {8: 1})


def test_retries_of_the_allocator_put_a_larger_size_off():
    """As long as the allocator has to give memory back, no larger size is tried."""
    adapted = Adapted()
    adapted.runs_short(8)
    assert [adapted.steps(2, memory_retries) for memory_retries in (1, 2, 3)] == [[], [], []]
    assert adapted.steps(2, 3) == [SplitBatch(8)]


def test_a_size_that_somebody_else_asked_for_is_the_one_to_go_on_from():
    """Another handler's split is taken over, and without a shortage nothing larger is asked for."""
    adapted = Adapted()
    adapted.handler.on_split(BatchSplit(Progress(), 2))
    assert adapted.steps(50) == []
    assert adapted.runs_short(2) == [SplitBatch(1)]
