"""Pairs of a chosen and a rejected conversation in one document, so that packing keeps them together.

Tokens of a pair are those of the chosen conversation followed by those of the rejected one. Each is a prompt, which no
token of the loss mask covers, and a reply, of which all tokens are covered and with which it ends. So the rejected
conversation begins where the mask falls from true to false within the document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from holdfast.domain.data.exclusion import document_of
from holdfast.domain.data.row_index import RowIndex
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast.domain.data.loss_mask import LossMask


class MaskedIds(NamedTuple):
    """The ids of a conversation or of a pair, int64 (tokens,), and its loss mask, bool (tokens,)."""

    ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]


def joined_pair(chosen: MaskedIds, rejected: MaskedIds) -> MaskedIds:
    """Return ``chosen`` and ``rejected`` as one document; the tokens after each reply are left out.

    They come after all targets, so they change no loss. Raises ``DataError`` if a conversation has no prompt, its reply
    is no single run of tokens, or both are the same tokens.
    """
    sides = [_side(each) for each in (chosen, rejected)]
    if np.array_equal(sides[0].ids, sides[1].ids):  # of replies that differ in white space, which a template may strip
        msg = "has replies that the chat template renders alike, so neither is preferred: leave the record out"
        raise DataError(msg)
    return MaskedIds(np.concatenate([ids for ids, _ in sides]), np.concatenate([mask for _, mask in sides]))


def _side(conversation: MaskedIds) -> MaskedIds:
    places = np.flatnonzero(conversation.loss_mask)
    if not len(places) or places[0] == 0 or places[-1] - places[0] + 1 != len(places):
        msg = "has a reply that does not follow a prompt as one piece of text: use another chat template"
        raise DataError(msg)
    end = places[-1] + 1
    return MaskedIds(conversation.ids[:end], conversation.loss_mask[:end])


def rejected_starts(loss_mask: LossMask | None, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first token of each pair's rejected conversation, int64 (documents,), in the flat ids.

    Document ``i`` is the tokens from ``offsets[i]`` to before ``offsets[i + 1]``. Raises ``DataError`` if the documents
    are no pairs.
    """
    first, last = offsets[[0, -1]].tolist()
    mask = np.zeros(0, np.bool_) if loss_mask is None else loss_mask[first:last]
    falls = np.flatnonzero(mask[:-1] & ~mask[1:]) + 1 + first
    within: NDArray[np.int64] = falls[~np.isin(falls, offsets)]
    if not np.array_equal(np.searchsorted(offsets, within, side="right") - 1, np.arange(len(offsets) - 1)):
        msg = "the tokens are no pairs of conversations: prepare the data with data.task=preference"
        raise DataError(msg)
    return within


def split_pairs(
    index: RowIndex,
    offsets: NDArray[np.int64],
    starts: NDArray[np.int64],
    log_probabilities: NDArray[np.float64] | None = None,
) -> RowIndex:
    """Return ``index``, whose pieces are whole pairs, with two pieces for each pair: first the chosen conversation.

    ``starts`` are those of ``rejected_starts``. ``log_probabilities``, float64 (documents, 2), are those of the chosen
    and the rejected replies under the reference model.
    """
    documents = document_of(index.starts, offsets[:-1])
    begins = np.stack([index.starts, starts[documents]], axis=1)
    ends = np.stack([starts[documents], index.starts + index.lengths], axis=1)
    values = None if log_probabilities is None else log_probabilities[documents].reshape(-1)
    return RowIndex(begins.reshape(-1), (ends - begins).reshape(-1), 2 * index.rows, values)
