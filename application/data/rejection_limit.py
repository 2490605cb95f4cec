"""Limit on the share of records that validation may reject."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, final

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_REASONS_SHOWN = 3


@final
class RejectionLimit:
    """Ends the run when more than ``share`` of the records read were rejected; ``share`` is from 0 to 1.

    A share among fewer than ``minimum_records`` says little, so ``add`` checks from this number on, and ``finish`` at
    any number. Only reasons that begin with ``prefix`` count as rejected. Thread-safe.
    """

    def __init__(self, share: float, minimum_records: int = 1000, *, prefix: str = "validation.") -> None:
        self._share = share
        self._minimum = minimum_records
        self._prefix = prefix
        self._read = 0
        self._reasons: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, read: int, rejected: Mapping[str, int]) -> None:
        """Count ``read`` more records, of which ``rejected`` were dropped, by reason.

        Raises ``DataError`` if the share is above the limit, from ``minimum_records`` on.
        """
        with self._lock:
            self._read += read
            self._reasons.update({reason: n for reason, n in rejected.items() if reason.startswith(self._prefix)})
            if self._read >= self._minimum:
                self._check()

    def finish(self) -> None:
        """Check the share once all records are read; raises ``DataError`` if it is above the limit."""
        with self._lock:
            self._check()

    def _check(self) -> None:
        rejected = self._reasons.total()
        if rejected / max(self._read, 1) <= self._share:  # a product could be rounded below the limit itself
            return
        # ties in the order of the names, so that the message does not depend on the order of threads
        frequent = sorted(self._reasons.items(), key=lambda item: (-item[1], item[0]))[:_MOST_REASONS_SHOWN]
        reasons = ", ".join(f"{reason} ({number:,})" for reason, number in frequent)
        msg = (
            f"validation rejected {rejected:,} of {self._read:,} records, more than data.validation.max_rejected="
            f"{self._share:g} allows, most often for {reasons}: repair the data, correct these rules, or raise "
            "data.validation.max_rejected"
        )
        raise DataError(msg)
