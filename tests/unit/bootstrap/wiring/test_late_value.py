import pytest

from holdfast.bootstrap.wiring.late_value import LateValue


def test_the_default_is_used_if_nothing_was_set():
    """Without a set value the default is returned."""
    assert LateValue(3).get() == 3


def test_the_value_that_was_set_is_used():
    """A value that was set before its first use takes the place of the default."""
    value = LateValue(3)
    value.set(4)
    assert (value.get(), value.get()) == (4, 4)


@pytest.mark.parametrize("first", [lambda value: value.set(4), lambda value: value.get()], ids=["set", "used"])
def test_a_value_never_changes_later(first):
    """A part that was built with the value would not know of another, so it is refused."""
    value = LateValue(3)
    first(value)
    with pytest.raises(AssertionError, match="set or used before"):
        value.set(5)
