"""The choice of documents that are held out from training, for evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Self

import numpy as np

from holdfast.domain.data.permutation import key_words, mix
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def hash_of(text: str) -> int:
    """Return a 64-bit hash that identifies a document by its text, independent of its place."""
    # the fastest hash in the standard library, as processors have instructions for it
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "little")


@dataclass(frozen=True, slots=True)
class Holdout:
    """Chooses a fixed share of documents by the hash of their text.

    The hash depends on the text, not on the place: two copies of a document are either both held out or both not, and
    the split does not change when files are moved or reordered. The documents that ``seed`` maps to [``begin``,
    ``end``) of [0, 1) are held out, of added files too. If ``chosen`` is given, those of its hashes are, and no others:
    little-endian uint64, ascending. They were chosen from all documents, and the numbers say which share was asked for.
    """

    end: float
    seed: int
    begin: float = 0.0
    chosen: bytes | None = field(default=None, repr=False)

    @classmethod
    def fold(cls, index: int, folds: int, seed: int) -> Self:
        """Return one of ``folds`` hold-outs of equal shares; exactly one of them holds out each document.

        Raises ``ConfigurationError`` if there is no such fold.
        """
        if not 0 <= index < folds:
            msg = f"there is no fold {index} of {folds}: folds are numbered from 0"
            raise ConfigurationError(msg)
        return cls((index + 1) / folds, seed, index / folds)

    @property
    def fraction(self) -> float:
        """Return the share of documents that is held out."""
        return self.end - self.begin

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return bool (documents,): whether each document, by its uint64 hash, is held out from training."""
        if self.chosen is not None:
            known = np.frombuffer(self.chosen, "<u8")
            places = np.searchsorted(known, hashes)
            is_held = places < len(known)
            is_held[is_held] = known[places[is_held]] == hashes[is_held]
            return is_held
        places_of_all = self.place_of(hashes)
        return (self.begin <= places_of_all) & (places_of_all < self.end)

    @property
    def key(self) -> str:
        """Return a text that is the same for hold-outs of the same documents, and another one for others."""
        chosen = "" if self.chosen is None else f" {blake2b(self.chosen, digest_size=16).hexdigest()}"
        return f"{self.begin!r} {self.end!r} {self.seed}{chosen}"

    def holds_text(self, text: str) -> bool:
        """Return whether the document is for evaluation, never for training."""
        return bool(self.holds(np.array([hash_of(text)], np.uint64))[0])

    def place_of(self, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the positions of documents in [0, 1), float64 (documents,), by their uint64 hashes."""
        return (mix(hashes ^ key_words(self.seed)[0]) >> 11) / 2**53
