"""Loss masks: packed into bits, and joined."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from holdfast.domain.data.loss_mask import PackedLossMask, join_masks, num_supervised, pack_mask, packed_size

MASKS = arrays(np.bool_, st.integers(0, 40))


@given(mask=MASKS, data=st.data())
def test_a_slice_of_packed_bits_is_the_slice_of_the_mask(mask, data):
    """Wherever a slice begins and ends, beyond the end too, its bits are those of the mask, as bool."""
    packed = PackedLossMask(pack_mask(mask), len(mask))
    start, stop = (data.draw(st.one_of(st.none(), st.integers(0, 50))) for _ in range(2))
    assert packed[start:stop].dtype == np.bool_
    assert packed[start:stop].tolist() == mask[start:stop].tolist()
    assert len(packed) == len(mask)
    assert len(pack_mask(mask)) == packed_size(len(mask))


@given(st.lists(st.tuples(MASKS, st.booleans()), max_size=5))
def test_joined_masks_train_on_all_tokens_without_a_mask(parts):
    """A part without a mask is all true, and there is no mask only if no part has one."""
    given_masks = [mask if is_given else None for mask, is_given in parts]
    joined = join_masks(given_masks, [len(mask) for mask, _ in parts])
    if all(mask is None for mask in given_masks):
        assert joined is None
    else:
        assert joined.tolist() == [bool(bit) or not is_given for mask, is_given in parts for bit in mask]


def test_the_first_token_of_a_document_is_never_counted():
    """Supervised tokens are those that the model predicts from others of their document."""
    mask = np.array([True, True, False, False, True, True])
    assert num_supervised(mask, np.array([0, 3, 4, 6])) == 2
    assert num_supervised(mask, np.array([0, 4, 5, 6])) == 1
