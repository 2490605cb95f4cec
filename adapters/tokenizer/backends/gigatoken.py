"""The fastest encoder, from the ``gigatoken`` library."""

from __future__ import annotations

import json
from threading import Lock
from typing import TYPE_CHECKING, final

import gigatoken
import numpy as np
import psutil

from holdfast.adapters.tokenizer.backends.encoder import UnfitError, check_surrogates
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

# gigatoken 0.10 remembers every word it has met and never forgets one: 450 million characters of random words took
# 2.5 GB. It does not report their number, so the size of the process is checked
_CHARACTERS_BETWEEN_LOOKS = 1 << 27
_MOST_GROWTH = 1 << 30


@final
class GigatokenEncoder:
    """Encodes with gigatoken on all cores (``RAYON_NUM_THREADS`` limits them), into ids of ``dtype``.

    Raises ``UnfitError`` for tokenizers that gigatoken cannot express. The library releases the GIL, and uses one
    thread inside a worker of ``multiprocessing``. Each ``characters_between_looks`` characters the encoder is recreated
    if the process has grown by ``most_growth`` bytes since the last time.
    """

    def __init__(
        self,
        core: Tokenizer,
        dtype: np.dtype[np.unsignedinteger],
        *,
        characters_between_looks: int = _CHARACTERS_BETWEEN_LOOKS,
        most_growth: int = _MOST_GROWTH,
    ) -> None:
        record = json.loads(core.to_str())
        # without special tokens, as gigatoken has no other way to read one that is written out as text
        record["added_tokens"] = [token for token in record["added_tokens"] if not token["special"]]
        if any(token[flag] for token in record["added_tokens"] for flag in ("single_word", "lstrip", "rstrip")):
            msg = "an added token takes the space around it, or matches only whole words"
            raise UnfitError(msg)
        record["post_processor"] = None
        self._serialized = json.dumps(record)
        self._tokenizer = _build(self._serialized)
        self._dtype = dtype
        self._characters_between_looks = characters_between_looks
        self._most_growth = most_growth
        self._process = psutil.Process()
        self._memory = self._process.memory_info().rss
        self._encoded = 0
        self._lock = Lock()

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        if not documents:
            return Encoded(np.zeros(0, self._dtype), offsets=np.zeros(1, np.int64))
        try:
            layout = self._current().encode_batch(list(documents)).layout
        except TypeError:
            check_surrogates(documents)
            raise
        with self._lock:
            self._encoded += sum(map(len, documents))
        offsets = np.asarray(layout.offsets.data, np.int64)
        ids = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return Encoded(ids.astype(self._dtype, copy=False), offsets=offsets - offsets[0])

    def _current(self) -> gigatoken.Tokenizer:
        with self._lock:
            if self._encoded >= self._characters_between_looks:
                self._encoded = 0
                self._forget_words()
            return self._tokenizer

    def _forget_words(self) -> None:
        """Recreate the encoder if the process has grown so much that remembered words may be the cause."""
        if self._process.memory_info().rss - self._memory >= self._most_growth:
            self._tokenizer = _build(self._serialized)
            self._memory = self._process.memory_info().rss


def _build(serialized: str) -> gigatoken.Tokenizer:
    try:
        return gigatoken.Tokenizer.from_json(serialized)
    except Exception as error:  # its errors have no common type
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnfitError(reason) from error
