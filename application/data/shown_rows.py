"""Rows of a batch as text, with the parts that are trained on."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from holdfast.ports.tokenizer import ShowsSpecialTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.ports.tokenizer import Tokenizer


class ShownPart(NamedTuple):
    """A part of a document as ``text``, with its special tokens, and whether it is trained on."""

    text: str
    is_trained: bool


ShownRow = list[list[ShownPart]]
"""The documents of a row, each as its parts in order."""


def shown_rows(batch: Batch, tokenizer: Tokenizer, num_rows: int) -> list[ShownRow]:
    """Return the first ``num_rows`` rows of ``batch`` that are not empty."""
    decode = tokenizer.decode_all if isinstance(tokenizer, ShowsSpecialTokens) else tokenizer.decode
    length = batch.input_ids.shape[1]
    rows: list[ShownRow] = []
    for row in np.flatnonzero(batch.row_lengths)[:num_rows].tolist():
        ids, targets, size = batch.input_ids[row], batch.loss_mask[row], int(batch.row_lengths[row])
        here = batch.starts[(batch.starts >= row * length) & (batch.starts < (row + 1) * length)] - row * length
        edges = [*here.tolist(), size]
        rows.append([
            [ShownPart(decode(ids[part].tolist()), is_trained) for part, is_trained in _runs(targets, begin, end)]
            for begin, end in pairwise(edges)
        ])  # fmt: skip
    return rows


def _runs(targets: NDArray[np.bool_], begin: int, end: int) -> Sequence[tuple[slice, bool]]:
    """Return the longest parts from ``begin`` to before ``end`` in which all tokens are targets, or none is."""
    changes = np.flatnonzero(np.diff(targets[begin:end])) + begin + 1
    edges = [begin, *changes.tolist(), end]
    return [(slice(a, b), bool(targets[a])) for a, b in pairwise(edges) if a < b]
