from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention, RollBackFloor, StoredCheckpoint
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.fault_tolerance.health import Health

STORED = st.dictionaries(
    st.integers(1, 500),
    st.builds(StoredCheckpoint, st.none() | st.floats(0, 10), st.floats(0, 1e6), st.booleans()),
    min_size=1,
    max_size=12,
)
RULES = st.builds(Retention, st.integers(1, 5), st.integers(0, 50), st.integers(0, 4), st.sampled_from([0, 0.5, 24]))


@given(stored=STORED, rules=RULES, data=st.data())
def test_what_is_kept_and_what_goes(stored, rules, data):
    """Deleted is exactly what is neither new, nor a milestone, nor among the best, nor pinned, nor just saved."""
    saved = data.draw(st.sampled_from(sorted(stored)))
    expired = rules.expired(stored, saved=saved)
    assert list(expired) == sorted(set(expired))
    for step, found in stored.items():
        others = {other: its for other, its in stored.items() if other != step}
        is_new = sum(other > step for other in others) < rules.keep
        is_milestone = rules.every > 0 and step % rules.every == 0
        loss = found.evaluation_loss
        losses = {other: its.evaluation_loss for other, its in others.items() if its.evaluation_loss is not None}
        is_best = (
            loss is not None
            and sum(its < loss or (its == loss and other > step) for other, its in losses.items()) < rules.best
        )
        window = rules.hours and found.saved_at // (3600 * rules.hours)
        is_first = rules.hours > 0 and not any(
            other < step and its.saved_at // (3600 * rules.hours) == window for other, its in others.items()
        )
        kept = is_new or is_milestone or is_best or is_first or found.is_pinned or step == saved
        assert (step in expired) == (not kept)


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 4), st.integers(0, 12), st.integers(1, 15), st.data())
def test_there_is_always_a_way_back(gaps, newest, every, most_bad, data):
    """Wherever a run is saved and goes wrong, the checkpoint that it goes back to was not deleted meanwhile."""
    step, ever, stored = 0, set(), set()
    for gap in gaps:
        found_out, num_bad = step + data.draw(st.integers(1, gap)), data.draw(st.integers(1, most_bad))
        goal = Health().last_good(found_out - num_bad + 1, every)
        able = {at for at in ever if at <= goal and not (every and at % every)}
        assert not able or max(able) in stored
        step += gap
        ever.add(step)
        stored.add(step)
        rules = Retention(newest, floor=RollBackFloor(step - most_bad, every))
        stored -= set(rules.expired({at: StoredCheckpoint() for at in stored}, saved=step))
        assert len(stored) <= newest + most_bad + 1


@given(stored=STORED, rules=RULES)
def test_the_newest_always_stays(stored, rules):
    """Whatever is kept beside it, the newest checkpoint is never deleted."""
    assert max(stored) not in rules.expired(stored, saved=min(stored))


@given(stored=STORED, newest=st.integers(1, 5), shift=st.floats(-1e9, 1e9))
def test_the_clock_decides_nothing_unless_hours_are_asked_for(stored, newest, shift):
    """A clock that was wrong when checkpoints were saved changes no choice of the newest."""
    moved = {step: replace(found, saved_at=found.saved_at + shift) for step, found in stored.items()}
    rules = Retention(newest)
    assert rules.expired(moved, saved=max(stored)) == rules.expired(stored, saved=max(stored))


@pytest.mark.parametrize(
    ("numbers", "named"),
    [((0, 0, 0), "keep is 0"), ((1, -1, 0), "keep_every"), ((1, 0, -1), "keep_best"), ((1, 0, 0, -1), "keep_hours")],
)
def test_numbers_that_make_no_sense_are_refused(numbers, named):
    """No checkpoint to go on from, or a negative number, is a user's mistake."""
    with pytest.raises(ConfigurationError, match=named):
        Retention(*numbers)


def test_the_best_without_an_evaluation_are_refused():
    """state_store.keep_best beside evaluation.every=0 could never choose, and says so."""
    sections = {"data": {"kind": "python_library"}, "state_store": {"keep_best": 1}}
    assert TrainSettings(**sections).state_store.keep_best == 1
    with pytest.raises(ValidationError, match="could not find the best checkpoints"):
        TrainSettings(**sections, evaluation={"every": 0})
