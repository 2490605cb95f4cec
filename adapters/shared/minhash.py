"""MinHash signatures, computed by the library rensa."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from rensa import RMinHash

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
class MinHashSignatures:
    """Computes signatures of ``permutations`` values: two sets agree in a share of them that is near their similarity.

    The signature of a set depends on the set, ``permutations`` and ``seed`` alone, not on the process, the processor or
    the number of threads. Usable from several threads at once, which then run at the same time.
    """

    def __init__(self, permutations: int, seed: int) -> None:
        self._permutations = permutations
        self._seed = seed

    def __call__(self, hashes: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the signature of each set, uint32 (sets, permutations).

        Set ``i`` is ``hashes[offsets[i] : offsets[i + 1]]``, in any order and with any repetitions.
        """
        matrix = RMinHash.digest_matrix_from_flat_token_hashes(
            hashes, offsets.astype(np.uint64), self._permutations, self._seed
        )
        return np.array(matrix.to_rows(), np.uint32).reshape(len(offsets) - 1, self._permutations)

    def fingerprint(self) -> str:
        """Return a short text that identifies the signatures; rensa raises its version when they change."""
        return f"rensa RMinHash {RMinHash.ALGORITHM_VERSION} {self._permutations} {self._seed}"
