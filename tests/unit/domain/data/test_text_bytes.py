"""The bytes of a text are shared among its tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.domain.data.token_ids import spread_bytes, utf8_sizes

EMPTY = st.just(([], 0))


@given(st.lists(EMPTY | st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(0, 10**7))))
@example([([1, 2], 3), ([], 0)])
def test_shares_are_whole_numbers_that_add_up(texts):
    """Whatever tokens hold, the shares of each text are its size, and those of ids without text are 0."""
    offsets = np.cumsum([0, *(len(held) for held, _ in texts)])
    held = np.array([size for each, _ in texts for size in each], np.int32)
    found = spread_bytes(held, offsets, np.array([size for _, size in texts], np.int64))
    assert (found >= 0).all()
    for (own, size), begin in zip(texts, offsets.tolist(), strict=False):
        part = found[begin : begin + len(own)].tolist()
        assert sum(part) == size
        if any(own):
            assert not any(share for share, number in zip(part, own, strict=True) if not number)
            assert all(abs(share - number * size / sum(own)) < 1 for share, number in zip(part, own, strict=True))
        if sum(own) == size:
            assert part == own or not size


def test_a_text_of_which_tokens_hold_nothing_counts_at_the_last_one():
    """Unknown words hold nothing, but stand for the text; an empty one may have no tokens."""
    held = np.array([3, 0, 0, 0, 0], np.int32)
    assert spread_bytes(held, np.array([0, 1, 1, 4, 5]), np.array([6, 0, 7, 2])).tolist() == [6, 0, 0, 7, 2]


def test_sizes_are_those_of_utf_8():
    """Three bytes for a character of Chinese, and no error for half of a pair."""
    assert utf8_sizes(["", "a", "你", "\ud800"]).tolist() == [0, 1, 3, 3]
