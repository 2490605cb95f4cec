"""Pairs of conversations are one document for packing, and two pieces of a row for the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data.loss_mask import PackedLossMask, pack_mask
from holdfast.domain.data.packing import BestFitPacking, place_rows
from holdfast.domain.data.preference_pairs import MaskedIds, joined_pair, rejected_starts
from holdfast.domain.data.row_index import NO_ROW, read_rows
from holdfast.domain.errors import DataError

sizes = st.tuples(*[st.integers(1, 6)] * 4)  # of prompt and reply, twice


def pair_of(number, lengths):
    """Return a pair whose ids tell the pair, and the lengths of its two conversations."""
    mask = np.concatenate([np.full(length, place % 2 == 1) for place, length in enumerate(lengths)])
    return MaskedIds(np.full(len(mask), number), mask)


@given(st.lists(sizes, min_size=1, max_size=20))
def test_the_conversations_of_a_pair_stay_together(pairs):
    """Each pair that fits is in one row as two neighbouring pieces, with its two values, the chosen one first."""
    made = [pair_of(number, lengths) for number, lengths in enumerate(pairs)]
    values = np.arange(2.0 * len(pairs)).reshape(-1, 2)
    places = place_rows(
        [each.ids.astype(np.uint16) for each in made],
        BestFitPacking(24, "drop"),
        [each.loss_mask for each in made],
        holds_pairs=True,
        reference=values,
    )
    batch = read_rows([*places, NO_ROW], 24)
    assert batch.num_terms * 2 == len(batch.starts) == len(batch.reference)
    assert batch.num_terms == len(pairs)
    whole = list(batch.pieces())
    for first in range(0, len(whole), 2):
        sides = whole[first : first + 2]
        [number] = {int(each.input_ids[0, 0]) for each in sides}
        assert [each.num_tokens for each in sides] == [sum(pairs[number][:2]), sum(pairs[number][2:])]
        assert [each.num_targets for each in sides] == list(pairs[number][1::2])
        assert batch.reference[first : first + 2].tolist() == values[number].tolist()
    rows = [int(start) // 24 for start in batch.starts]
    assert rows[0::2] == rows[1::2]


@given(st.lists(sizes, min_size=1, max_size=8), st.integers(1, 4))
def test_micro_batches_split_no_pair(pairs, rows):
    """The parts of a batch have its pairs, values and margins, in order."""
    made = [pair_of(number, lengths) for number, lengths in enumerate(pairs)]
    values = np.arange(2.0 * len(pairs)).reshape(-1, 2)
    documents = [each.ids.astype(np.uint16) for each in made]
    masks = [each.loss_mask for each in made]
    batch = read_rows(
        place_rows(documents, BestFitPacking(24, "drop"), masks, holds_pairs=True, reference=values), 24
    )  # fmt: skip
    parts = list(batch.split(rows))
    assert np.concatenate([part.reference for part in parts]).tolist() == batch.reference.tolist()
    assert sum(part.num_terms for part in parts) == batch.num_terms
    assert np.concatenate([part.reference_margins for part in parts]).tolist() == batch.reference_margins.tolist()
    for part in parts:
        of_piece = np.bincount(part.target_pieces, minlength=len(part.starts))
        assert of_piece.tolist() == [piece.num_targets for piece in part.pieces()]


def test_the_tokens_after_a_reply_are_left_out():
    """A conversation ends with its last target, so that the mask alone tells where the next one begins."""
    chosen = MaskedIds(np.arange(5), np.array([False, True, True, False, False]))
    rejected = MaskedIds(np.arange(10, 13), np.array([False, False, True]))
    pair = joined_pair(chosen, rejected)
    assert pair.ids.tolist() == [0, 1, 2, 10, 11, 12]
    bits = PackedLossMask(pack_mask(np.tile(pair.loss_mask, 2)), 12)
    assert rejected_starts(bits, np.array([0, 6, 12])).tolist() == [3, 9]
    assert rejected_starts(bits, np.array([6, 12])).tolist() == [9]


@pytest.mark.parametrize("mask", [[True, True], [False, False], [False, True, False, True], []])
def test_a_conversation_without_prompt_or_with_two_replies_is_refused(mask):
    """The boundary could not be told from the mask, so such a conversation is no half of a pair."""
    good = MaskedIds(np.arange(2), np.array([False, True]))
    with pytest.raises(DataError, match="does not follow a prompt as one piece"):
        joined_pair(good, MaskedIds(np.arange(len(mask)), np.array(mask, np.bool_)))


def test_replies_that_are_the_same_tokens_are_refused():
    """A template that strips white space renders two different texts alike, which would be no preference."""
    mask = np.array([False, True, True, False])
    with pytest.raises(DataError, match="renders alike"):
        joined_pair(MaskedIds(np.arange(4), mask), MaskedIds(np.arange(3), mask[:3]))


@pytest.mark.parametrize("mask", [None, [False, True, True], [False, True, False, True, False, True]])
def test_documents_that_are_no_pairs_are_refused(mask):
    """Tokens of another task, which a cache may hold, are not taken for pairs."""
    size = 3 if mask is None else len(mask)
    with pytest.raises(DataError, match="no pairs of conversations"):
        rejected_starts(None if mask is None else np.array(mask), np.array([0, size]))
