from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.resources.balance_policy import (
    Balance,
    BalanceState,
    Knob,
    KnobSetting,
    ResourceReading,
    SaveTiming,
)

KNOBS = {
    Knob.PREFETCH: KnobSetting(4, 4, 1, 32),
    Knob.THREADS: KnobSetting(2, 2, 1, 8),
    Knob.MICRO_BATCH: KnobSetting(8, 8, 1, 8),
    Knob.SAVE_EVERY: KnobSetting(100, 100, 100, 400),
}
QUIET = ResourceReading(step_seconds=0.5, wait_seconds=0.0, batches_ready=4, memory=0.4, processors=0.5)
STARVED = replace(QUIET, wait_seconds=0.5, batches_ready=0)
READINGS = st.builds(
    ResourceReading,
    step_seconds=st.floats(0.01, 2),
    wait_seconds=st.floats(0, 2),
    batches_ready=st.integers(0, 4),
    memory=st.floats(0, 1),
    processors=st.floats(0, 1),
    stalled=st.none() | st.floats(0, 1),
)


@dataclass
class Run:
    """A run under a policy: what it sees follows from what its knobs are set to."""

    policy: Balance = Balance()  # noqa: RUF009  frozen
    state: BalanceState = BalanceState(KNOBS)  # noqa: RUF009  frozen

    def __post_init__(self):
        self.changes = []

    def steps(self, number, reading):
        """Take so many steps, each seen as ``reading``, or as what it says of the knobs; return the changes."""
        before = len(self.changes)
        for _ in range(number):
            seen = reading(self.values) if callable(reading) else reading
            self.state, change = self.policy.after_steps(self.state, seen)
            self._note(change)
        return self.changes[before:]

    def save(self, seconds, stall_seconds):
        """Let a checkpoint be durable; return the change, if there is one."""
        self.state, change = self.policy.after_save(self.state, SaveTiming(seconds, stall_seconds))
        self._note(change)
        return change

    def _note(self, change):
        if change is not None:
            assert self.state.knobs[change.knob].value == change.after != change.before
            self.changes.append(change)

    @property
    def values(self):
        """Return what each knob is set to."""
        return {knob: setting.value for knob, setting in self.state.knobs.items()}


def usual(knobs=KNOBS):
    return {knob: setting.usual for knob, setting in knobs.items()}


def test_a_quiet_machine_changes_nothing():
    """Where memory is free and no step waits, no knob is ever turned."""
    assert Run().steps(2000, QUIET) == []


@settings(deadline=None, max_examples=40)
@given(READINGS)
def test_a_load_that_stays_the_same_leads_to_few_changes(reading):
    """Under one reading for ever, whatever it is, knobs are not turned to and fro: most changes come at first."""
    run = Run()
    run.steps(500, reading)
    assert len(run.changes) <= 20
    assert len(run.steps(500, reading)) <= 6


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(READINGS, st.integers(1, 20)), max_size=20))
def test_knobs_stay_within_their_bounds_and_one_turns_at_a_time(phases):
    """Whatever happens, a knob never leaves its bounds, goes by halves and doubles, and rests until it is judged."""
    run = Run()
    for reading, steps in phases:
        turned = [bool(run.steps(1, reading)) for _ in range(steps)]
        assert all(not any(turned[place + 1 : place + 4]) for place, is_one in enumerate(turned) if is_one)
        for setting in run.state.knobs.values():
            assert setting.minimum <= setting.value <= setting.maximum
    for change in run.changes:
        assert change.before // 2 <= change.after <= change.before * 2
        assert change.reason


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(READINGS, st.integers(1, 20)), max_size=12))
def test_what_memory_took_comes_back(phases):
    """Whatever a run went through, on a machine with room no knob stays below where the run began."""
    run = Run()
    for reading, steps in phases:
        run.steps(steps, reading)
    run.steps(2 * run.state.memory.patience + 40, QUIET)
    assert all(run.values[knob] >= setting.usual for knob, setting in KNOBS.items())


def test_full_memory_takes_from_the_feed_first_and_from_the_batch_last():
    """From 85 % on less is prepared ahead by fewer threads; rows at once become fewer only from 95 % on."""
    run = Run()
    assert {change.knob for change in run.steps(60, replace(QUIET, memory=0.9))} == {Knob.PREFETCH, Knob.THREADS}
    assert run.values == usual() | {Knob.PREFETCH: 1, Knob.THREADS: 1}
    first = run.steps(4, replace(QUIET, memory=0.97))
    assert [(change.knob, change.after) for change in first] == [(Knob.MICRO_BATCH, 4)]


@pytest.mark.parametrize(
    ("memory", "stalled", "is_smaller"),
    [(0.97, None, True), (0.97, 0.0, False), (0.97, 0.2, True), (0.995, 0.0, True), (0.9, 0.2, False)],
)
def test_rows_become_fewer_where_memory_is_about_to_run_out(memory, stalled, is_smaller):
    """Full memory that nobody waits for takes no rows away until hardly any is left."""
    run = Run()
    run.steps(60, replace(QUIET, memory=memory, stalled=stalled))
    assert any(change.knob is Knob.MICRO_BATCH for change in run.changes) == is_smaller


def test_memory_between_the_two_limits_changes_nothing():
    """Between 75 % and 85 % nothing is taken that was not, and nothing given back that was."""
    run = Run()
    assert run.steps(100, replace(QUIET, memory=0.84)) == []
    run.steps(20, replace(QUIET, memory=0.86))
    taken = run.values
    assert taken != usual()
    run.steps(100, replace(QUIET, memory=0.80))
    assert run.values == replace_all(taken, Knob.PREFETCH, Knob.THREADS, value=1)
    run.steps(100, replace(QUIET, memory=0.70))
    assert run.values == usual()


def replace_all(values, *knobs, value):
    return values | dict.fromkeys(knobs, value)


def hogged(hog):
    """Return a machine whose memory is full to ``hog`` and 2 % for each row at once."""
    return lambda values: replace(QUIET, memory=hog + 0.02 * values[Knob.MICRO_BATCH])


def test_a_hog_is_answered_within_ten_steps_and_so_is_its_end():
    """A machine that becomes full takes effect within ten steps, and what was taken comes back once it is free."""
    run = Run()
    run.steps(20, QUIET)
    assert run.steps(10, hogged(0.82))
    run.steps(30, hogged(0.82))
    assert run.values[Knob.MICRO_BATCH] == 4
    run.steps(30, hogged(0.3))
    assert run.values == usual()


def test_a_smaller_micro_batch_that_frees_nothing_is_taken_back():
    """Where others hold the memory, rows at once are as they were, and tried ever more seldom."""
    run = Run()
    rows = [change.after for change in run.steps(400, replace(QUIET, memory=0.97)) if change.knob is Knob.MICRO_BATCH]
    assert rows == [4, 8] * (len(rows) // 2)
    assert 2 <= len(rows) <= 8


def test_a_hog_that_comes_and_goes_is_believed_less_each_time():
    """The more often memory was short, the longer it must be free before knobs are turned back."""
    run = Run()
    for _ in range(40):
        run.steps(12, replace(QUIET, memory=0.9))
        run.steps(12, QUIET)
    assert len(run.changes) <= 12


def slow(supply):
    """Return a machine whose data come at ``supply`` (batches a second for each thread), and steps take 0.5 s."""

    def reading(values):
        seconds = 1 / (supply * values[Knob.THREADS])
        return replace(QUIET, wait_seconds=max(0.0, seconds - 0.5), batches_ready=0 if seconds > 0.5 else 4)

    return reading


def test_slow_data_get_more_threads_until_training_waits_no_more():
    """Training that waits gets twice the threads as long as that helps, begun within ten steps, and keeps them."""
    run = Run()
    run.steps(20, QUIET)
    assert run.steps(10, slow(0.3))
    run.steps(200, slow(0.3))
    assert [(change.knob, change.after) for change in run.changes] == [(Knob.THREADS, 4), (Knob.THREADS, 8)]


def test_what_brings_nothing_is_taken_back():
    """Threads and depth that do not make steps faster are as they were, and are tried ever more seldom."""
    run = Run()
    run.steps(5000, STARVED)
    assert run.values == usual()
    assert 4 <= len(run.changes) <= 30


def test_bursts_get_a_deeper_queue_once_threads_bring_nothing():
    """Where data stand still now and then, whatever reads them, more is prepared ahead once threads were tried."""
    run = Run()
    for _ in range(10):
        run.steps(2, QUIET)
        run.steps(1, replace(QUIET, wait_seconds=1.5))
    assert [(change.knob, change.after) for change in run.changes[:3]] == [
        (Knob.THREADS, 4),
        (Knob.THREADS, 2),
        (Knob.PREFETCH, 8),
    ]


def test_busy_processors_get_no_more_threads():
    """Threads that would share the processors with training are not added; a deeper queue is tried all the same."""
    run = Run()
    assert {change.knob for change in run.steps(500, replace(STARVED, processors=1.0))} == {Knob.PREFETCH}


def test_want_of_data_does_not_fill_a_memory_that_is_full():
    """While memory is short, training that waits for data gets nothing more."""
    run = Run()
    run.steps(200, replace(STARVED, memory=0.9))
    assert run.values == usual()


def test_what_memory_took_is_given_back_if_training_waits_for_it():
    """Fewer threads that make training wait for data are not worth the memory, unless it is about to run out."""
    run = Run()
    run.steps(300, lambda values: replace(slow(1.0)(values), memory=0.9))
    assert run.values[Knob.THREADS] == 2


def test_waits_too_short_to_notice_change_nothing():
    """Of steps that take milliseconds, shares of waiting are noise."""
    assert Run().steps(500, ResourceReading(0.01, 0.05, 0)) == []


def test_saves_that_hold_up_training_become_rarer_and_then_as_they_were():
    """Where saves take more than a tenth of the time, twice the steps lie between them, at most four times as many."""
    run = Run()
    run.steps(5, QUIET)
    assert [run.save(60.0, stall).after for stall in (10.0, 20.0)] == [200, 400]
    assert run.save(200.0, 100.0) is None
    assert [run.save(1.0, 0.1).after for _ in range(2)] == [200, 100]
    assert run.save(1.0, 0.1) is None


@pytest.mark.parametrize("stall", [0.01, 0.9])
def test_short_waits_for_saves_change_nothing(stall):
    """Saves each of which takes less than a second are nobody's concern, however often they come."""
    run = Run(state=BalanceState({Knob.SAVE_EVERY: KnobSetting(1, 1, 1, 4)}))
    run.steps(5, replace(QUIET, step_seconds=0.26))
    assert run.save(stall, stall) is None


@given(st.floats(0.01, 300), st.floats(0, 1))
def test_one_duration_of_saves_leads_to_one_rhythm(seconds, share):
    """With saves that always take as long, a save that waits for the one before included, the rhythm settles."""
    run = Run()
    run.steps(5, QUIET)
    for _ in range(20):
        period = run.values[Knob.SAVE_EVERY] * 0.5
        run.save(seconds, seconds * share + max(0.0, seconds - period))
    assert len(run.changes) <= 2
    if run.changes:
        assert run.values[Knob.SAVE_EVERY] in (200, 400)
