"""Rows of a batch are shown with what is trained on."""

from __future__ import annotations

import numpy as np

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.data.trace_samples import shown_rows
from holdfast.domain.data.batch import Batch


def batch_of(*rows: str, starts: list[int], mask: list[list[int]] | None = None) -> Batch:
    length = max(map(len, rows))
    ids = np.array([[*row.encode(), *[0] * (length - len(row))] for row in rows])
    supervised = None if mask is None else np.array(mask, np.bool_)
    return Batch(ids, np.array(starts), np.array([*map(len, rows)]), supervised=supervised)


def test_runs_of_tokens_are_parts_of_their_document():
    """Each document of a row is its text in parts that are trained on as a whole or not at all, without padding."""
    mask = [[0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 1, 1]]
    batch = batch_of("abcdef", "uvw", starts=[0, 4, 6], mask=mask)
    assert shown_rows(batch, MemoryTokenizer(), 5) == [
        [[("ab", False), ("cd", True)], [("e", False), ("f", True)]],
        [[("u", False), ("v", True), ("w", False)]],
    ]


def test_the_first_token_of_a_document_is_no_target():
    """Without a mask all tokens but the first of each document are trained on, and empty rows are left out."""
    batch = batch_of("", "abc", starts=[3])
    assert shown_rows(batch, MemoryTokenizer(), 5) == [[[("a", False), ("bc", True)]]]
    assert shown_rows(batch_of("ab", "cd", starts=[0, 2]), MemoryTokenizer(), 1) == [[[("a", False), ("b", True)]]]
