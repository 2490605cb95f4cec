"""An encoder for byte-level BPE, from the ``tiktoken`` library."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, final

import numpy as np
import tiktoken
from tokenizers import Tokenizer

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.tokenizer.backends.byte_level import check_options, group_plain, rank_tokens, split_pattern
from holdfast.adapters.tokenizer.backends.encoder import UnfitError, check_surrogates, join, join_ids
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence


@final
class TiktokenEncoder:
    """Encodes documents with tiktoken, on all cores, into ids of ``dtype``.

    Raises ``UnfitError`` for tokenizers that tiktoken cannot express. The library releases the GIL.
    """

    def __init__(self, core: Tokenizer, dtype: np.dtype[np.unsignedinteger]) -> None:
        record = json.loads(core.to_str())
        _check_extras(record)
        check_options(record["model"])
        pattern = split_pattern(record["pre_tokenizer"])
        merger = Tokenizer.from_str(json.dumps({**record, "added_tokens": []})).model
        merger.ignore_merges = False
        ranks = rank_tokens(record["model"], merger.tokenize)
        try:
            self._encoding = tiktoken.Encoding(
                "reference", pat_str=group_plain(pattern), mergeable_ranks=dict(ranks.by_token), special_tokens={}
            )
        except ValueError as error:
            msg = f"tiktoken does not understand the tokenizer's expression {pattern!r} ({error})"
            raise UnfitError(msg) from error
        self._ids = ranks.ids.astype(dtype)
        self._lengths = ranks.lengths
        self._num_threads = usable_cpus()
        self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="tiktoken")

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        share = len(documents) // (4 * self._num_threads) + 1
        shares = [documents[at : at + share] for at in range(0, len(documents), share)]
        try:
            parts = list(self._threads.map(self._encode_share, shares) if len(shares) > 1 else [])
            parts = parts or [self._encode_share(documents)]
        except UnicodeEncodeError:
            check_surrogates(documents)
            raise
        return join(parts)

    def _encode_share(self, documents: Sequence[str]) -> Encoded:
        parts = [self._encoding.encode_to_numpy(text, disallowed_special=()) for text in documents]
        ranks = join_ids(parts, np.dtype(np.uint32))
        # tiktoken would lose text between two matches of the expression, which Hugging Face keeps
        if self._lengths[ranks.ids].sum() != sum(len(text.encode()) for text in documents):
            msg = "the expression that splits words skips some characters"
            raise ValueError(msg)
        return Encoded(self._ids[ranks.ids], ranks.offsets)


def _check_extras(record: dict[str, object]) -> None:
    if record["normalizer"] is not None:
        msg = "it has a normalizer"
        raise UnfitError(msg)
    added = record["added_tokens"]
    if isinstance(added, list) and any(not token["special"] for token in added):
        msg = "it has added tokens that are not special"
        raise UnfitError(msg)
