"""From which epoch on a run reads what was added to its data."""

from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.sample_order import EarlierSize, Growth

ALONE = Mixture(0, (Stage(0, (1,)),))


def test_what_is_new_waits_for_the_next_epoch():
    """A part without an epoch begins with the first epoch of which no sample was read, under the sizes until then."""
    assert Growth((None,), 0).resolve([10, 5], ALONE) == (EarlierSize(0, 10),)
    assert Growth((None,), 1).resolve([10, 5], ALONE) == (EarlierSize(1, 10),)
    assert Growth((None,), 20).resolve([10, 5], ALONE) == (EarlierSize(2, 10),)
    assert Growth((2, None), 35).resolve([10, 5, 1], ALONE) == (EarlierSize(2, 10), EarlierSize(3, 15))
    assert Growth((2, None), 36).resolve([10, 5, 1], ALONE) == (EarlierSize(2, 10), EarlierSize(4, 15))


def test_a_later_part_never_comes_before_an_earlier_one():
    """A run that went back to before its growth keeps the order in which parts were added."""
    assert Growth((4, None), 3).resolve([10, 5, 1], ALONE) == (EarlierSize(4, 10), EarlierSize(4, 15))
