import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data.cursor import Cursor, LanePosition

COUNTS = st.integers(0, 2**62)
CURSORS = st.builds(
    Cursor, COUNTS, st.lists(st.builds(LanePosition, COUNTS, COUNTS, COUNTS, COUNTS), max_size=5).map(tuple)
)


@given(CURSORS)
def test_a_cursor_survives_json(cursor):
    """What a checkpoint holds of a place is that place, whatever its size."""
    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor


def test_a_new_cursor_is_the_start():
    """Without a word a cursor is before everything, and so is a lane."""
    assert Cursor() == Cursor(0, ())
    assert LanePosition() == LanePosition(0, 0, 0, 0)


@pytest.mark.parametrize(
    "record", [{}, {"samples": 3}, {"samples": "x", "lanes": []}, {"samples": 1, "lanes": [[1] * 6]}]
)
def test_what_is_no_cursor_is_refused(record):
    """A record that lacks something, or holds something else, is an error and not a start from nothing."""
    with pytest.raises((KeyError, ValueError, TypeError)):
        Cursor.from_json(record)
