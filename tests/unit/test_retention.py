import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from configs.settings import TrainSettings
from domain.errors import ConfigurationError
from domain.retention import Retention

STORED = st.dictionaries(st.integers(1, 500), st.none() | st.floats(0, 10), min_size=1, max_size=12)


@given(stored=STORED, newest=st.integers(1, 5), every=st.integers(0, 50), best=st.integers(0, 4), data=st.data())
def test_what_is_kept_and_what_goes(stored, newest, every, best, data):
    """Deleted is exactly what is neither among the newest, nor a milestone, nor among the best, nor just saved."""
    saved = data.draw(st.sampled_from(sorted(stored)))
    doomed = Retention(newest, every, best).doomed(stored, saved=saved)
    assert list(doomed) == sorted(set(doomed))
    for step, loss in stored.items():
        is_new = sum(other > step for other in stored) < newest
        is_milestone = every > 0 and step % every == 0
        better = [other for other, its in stored.items() if its is not None and loss is not None and its < loss]
        equal_but_later = [other for other, its in stored.items() if its == loss and other > step]
        is_best = loss is not None and len(better) + len(equal_but_later) < best
        assert (step in doomed) == (not (is_new or is_milestone or is_best or step == saved))


@given(stored=STORED, newest=st.integers(1, 5), every=st.integers(0, 50), best=st.integers(0, 4))
def test_the_newest_always_stays(stored, newest, every, best):
    """Whatever is kept beside it, the newest checkpoint is never deleted."""
    assert max(stored) not in Retention(newest, every, best).doomed(stored, saved=min(stored))


@pytest.mark.parametrize(
    ("numbers", "named"), [((0, 0, 0), "keep is 0"), ((1, -1, 0), "keep_every"), ((1, 0, -1), "keep_best")]
)
def test_numbers_that_make_no_sense_are_refused(numbers, named):
    """No checkpoint to go on from, or a negative number, is a user's mistake."""
    with pytest.raises(ConfigurationError, match=named):
        Retention(*numbers)


def test_the_best_without_an_evaluation_are_refused():
    """state_store.keep_best beside evaluation.every=0 could never choose, and says so."""
    sections = {"data": {"kind": "python_library"}, "state_store": {"keep_best": 1}}
    assert TrainSettings(**sections).state_store.keep_best == 1
    with pytest.raises(ValidationError, match="could not tell which checkpoints are best"):
        TrainSettings(**sections, evaluation={"every": 0})
