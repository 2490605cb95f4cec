"""Which documents are kept from training, to evaluate on."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Holdout:
    """Chooses a fixed share of documents by a keyed hash of their text.

    Hashing the text, not the place, keeps two copies of one document on the same side and the split unchanged when
    files are moved, reordered or added.
    """

    fraction: float
    seed: int

    def holds(self, text: str) -> bool:
        """Return whether the document is for evaluation, never for training."""
        return self.place_of(text) < self.fraction

    def place_of(self, text: str) -> float:
        """Return where the document falls in [0, 1): it is held if that is below ``fraction``."""
        key = (self.seed % 2**64).to_bytes(8, "little")
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
        return (int.from_bytes(digest, "little") >> 11) / 2**53
