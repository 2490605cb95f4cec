"""In which ranges a file on another machine is fetched."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.data_source.ranges import RangeSteps

MIB = 1 << 20


@given(
    st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 3000), st.integers(0, 3000), st.integers(0, 10_000)
)
def test_ranges_follow_each_other_to_the_end(size, until, range_bytes, beyond, begin):
    """Whatever the part, one who reads on from anywhere gets each byte once, in ranges that are none of them empty."""
    steps = RangeSteps(size, min(until, size), range_bytes, ahead=2, beyond=beyond)
    while (end := steps.following(begin, 0)) is not None:
        assert begin < end <= size
        begin = end
    assert begin >= size


def test_a_part_is_one_request():
    """A part that begins with the line end before it leaves no byte over that would need a request of its own."""
    steps = RangeSteps(100 * MIB, 16 * MIB, 8 * MIB, ahead=4)  # the part from 8 MiB on
    assert steps.following(8 * MIB - 1, 0) == 16 * MIB + MIB // 4
    assert steps.following(16 * MIB + MIB // 4, 1) is None


def test_a_long_line_takes_few_requests():
    """Behind a part at least a MiB is fetched at once, and with each request twice as much as before."""
    steps = RangeSteps(100 * MIB, 16 * MIB, 8 * MIB, ahead=4)
    assert steps.following(16 * MIB + MIB // 4, 0) == 17 * MIB + MIB // 4
    assert steps.following(18 * MIB, 0) == 20 * MIB
