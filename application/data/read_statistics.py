"""Statistics of the documents that were read: their number, and the reasons why some were left out."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class Profiling(Protocol):
    """Anything that describes documents from their texts and tokens."""

    def add(
        self,
        texts: Sequence[str],
        ids: NDArray[np.unsignedinteger],
        offsets: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> None:
        """Add documents: their texts, and their tokens and hashes as in ``Tokens``."""


@final
class ReadStatistics:
    """Counts records that were read, and records that were left out or doubtful, by reason. Thread-safe.

    ``records`` counts all records that the source gave, those that cannot be used included. A record that cannot be
    used is dropped for the reason ``unusable``. ``profile`` describes the documents that are tokenized.
    """

    def __init__(self, profile: Profiling | None = None) -> None:
        self.profile = profile
        self._records = 0
        self._drops: Counter[str] = Counter()
        self._warnings: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def records(self) -> int:
        """Return the number of records that were read."""
        return self._records

    @property
    def drops(self) -> dict[str, int]:
        """Return the number of records that were left out, by reason, sorted by name."""
        return dict(sorted(self._drops.items()))

    @property
    def warnings(self) -> dict[str, int]:
        """Return the number of records that are used in spite of a warning, by reason, sorted by name."""
        return dict(sorted(self._warnings.items()))

    def read(self) -> None:
        """Count a record that was read."""
        with self._lock:
            self._records += 1

    def drop(self, reason: str) -> None:
        """Count a record that is left out."""
        with self._lock:
            self._drops[reason] += 1

    def warn(self, reasons: Sequence[str]) -> None:
        """Count the warnings about a record."""
        with self._lock:
            self._warnings.update(reasons)
