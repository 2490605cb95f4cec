"""Parts of some work cover it without overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data.work_part import NO_WORK, WHOLE, WorkPart
from holdfast.domain.errors import ConfigurationError


@given(st.lists(st.integers(), max_size=50), st.integers(1, 60))
def test_the_parts_are_the_whole(pieces, count):
    """Every piece is in exactly one part, in order, and the sizes differ by one at most."""
    parts = [WorkPart(number, count).of(pieces) for number in range(count)]
    found = [None] * len(pieces)
    for number, part in enumerate(parts):
        found[number::count] = part
    assert found == pieces
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert WHOLE.of(pieces) == pieces
    assert NO_WORK.of(pieces) == []


@pytest.mark.parametrize("part", [WorkPart(0, 1), WorkPart(3, 8), NO_WORK])
def test_a_part_is_read_as_it_is_written(part):
    """The text of a part is that of the command line."""
    assert WorkPart.parse(str(part)) == part


@pytest.mark.parametrize("text", ["", "1", "1/1", "4/4", "-1/4", "a/4", "1/0", "0/0", "1/4/5", "1 / 4", "٣/8"])
def test_what_is_no_part_is_refused(text):
    """The message says how parts are written."""
    with pytest.raises(ConfigurationError, match="such as 0/4 to 3/4"):
        WorkPart.parse(text)
