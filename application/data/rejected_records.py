"""Records of the data that cannot be used: reported as an error, or skipped and counted."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol, final

from holdfast.domain.errors import DataError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.ports.data_source import Rejected, Unit
    from holdfast.ports.transform import Dropped

_log = logging.getLogger(__name__)

RULE = "rule"
"""The key of the rule's reason in the record of a document that a rule left out."""

UNUSABLE = "unusable"
"""The reason by which records that cannot be used are counted."""

LOST = "the rest of a file"
"""The reason by which files are counted that cannot be read to their end."""

UNUSED = " is not used"
"""The end of a warning about a part of a record that has no meaning."""

LOSES_REST = "loses_rest"
"""The key in the record of what ended the reading of a file, so that all that follows there is left out, too."""

NUM_LOST = "lost_records"
"""The key of the number of records that are left out with the rest of a file, where it is known."""

_KIND = "kind"
_REMEDIES = {"not in the encoding": ": set data.encoding to that of the files, or convert them"}
_NO_DETAILS = "details are hidden, as data.cache.encryption is set"

OnError = Literal["stop", "skip"]
Record = dict[str, object]


@final
class RejectedRecords:
    """Ends the run at the first record that cannot be used, or skips these records and writes each down once.

    ``write`` gets source, position and reason as JSON, and the rule if a rule left the record out. ``known`` are the
    records of earlier processes: data that are read again, after a resume or in another epoch, are not counted again.
    With ``hides_details`` neither errors nor the records that are written have the reasons in full, as these may quote
    the data; the records for the log have them. If it ``is_strict``, a part of a record that is not used ends the run.
    Thread-safe.
    """

    def __init__(
        self,
        on_error: OnError,
        write: Callable[[Mapping[str, object]], object] = lambda _: None,
        known: Iterable[Mapping[str, object]] = (),
        *,
        hides_details: bool = False,
        is_strict: bool = False,
    ) -> None:
        self._on_error = on_error
        self._is_strict = is_strict
        self._hides_details = hides_details
        self._write = write
        self._known = {_place(record) for record in known}
        self._said: set[str] = set()
        self._lock = Lock()

    @property
    def count(self) -> int:
        """Return the number of records skipped since the run began."""
        return len(self._known)

    def unwritten(self) -> RejectedRecords:
        """Return the same policy for records that are read once more elsewhere: it writes none and counts apart."""
        other = RejectedRecords(self._on_error, hides_details=self._hides_details, is_strict=self._is_strict)
        other._said = self._said
        return other

    def reject(self, unit: Unit, rejected: Rejected, tell: Callable[[Unit, Rejected], str] | None = None) -> Record:
        """Return the record of ``rejected`` for the log; raises ``DataError`` with its reason if it ends the run.

        ``tell`` then returns the reason with all details for a person.
        """
        reason = rejected.reason if tell is None or self._on_error == "skip" else tell(unit, rejected)
        record: Record = {"unit": unit.name, "position": rejected.start, "reason": reason}
        if rejected.end is None and self._on_error == "skip":
            number = "and their number is unknown"
            if rejected.num_lost is not None:
                number = f"{counted(rejected.num_lost, 'record')} in all"
                record[NUM_LOST] = rejected.num_lost
            rest = f"all records that follow in {unit.name} are left out, too, {number}"
            record |= {"reason": f"{reason}; {rest}", LOSES_REST: True}
        elif rejected.kind != UNUSABLE:
            record[_KIND] = rejected.kind
        self._refuse(record)
        return record

    def error_of(self, unit: Unit, position: int, dropped: Dropped) -> DataError:
        """Return the error about a document for which a rule ends the run."""
        detail = f"{dropped.reason}; {_NO_DETAILS}" if self._hides_details else dropped.detail or dropped.reason
        return DataError(f"{unit.name}, the document at position {position}: {detail}")

    def check_used(self, warnings: Iterable[str], place: str) -> None:
        """Raise ``DataError`` if one of ``warnings`` about the records at ``place`` ends the run."""
        unused = next((reason for reason in warnings if reason.endswith(UNUSED)), None)
        if unused is not None and self._is_strict:
            msg = f"{place}: {unused}, and data.strict is true: take it out of the records, or leave data.strict out"
            raise DataError(msg)

    def say(self, warnings: Iterable[str]) -> None:
        """Log warnings about records that are not counted for later, each once."""
        with self._lock:
            new = sorted(set(warnings) - self._said)
            self._said.update(new)
        for reason in new:
            _log.warning("some records are used with a warning: %s", reason)

    def leave_out(self, unit: Unit, position: int, dropped: Dropped) -> Record:
        """Return the record of a document that a rule left out, for the log; it ends no run."""
        return {"unit": unit.name, "position": position, RULE: dropped.reason, "reason": dropped.detail}

    def record(self, rejection: Mapping[str, object]) -> None:
        """Write down a skipped record, unless it was before; raises ``DataError`` if it ends the run.

        So tokens that were prepared without some records cannot be used by a run that ends at the first of them.
        Records that a rule left out end no run.
        """
        if RULE not in rejection:
            self._refuse(rejection)
        with self._lock:
            place = _place(rejection)
            if place not in self._known:
                self._known.add(place)
                self._write({**rejection, "reason": _hidden(rejection)} if self._hides_details else rejection)

    def _refuse(self, record: Mapping[str, object]) -> None:
        if self._on_error == "stop":
            reason = _hidden(record) if self._hides_details else record["reason"]
            msg = f"{reason} (to skip records that cannot be used: data.on_error=skip)"
            raise DataError(msg)


def reason_of(record: Mapping[str, object]) -> str:
    """Return the reason by which ``record``, that of what was left out, is counted."""
    return str(record.get(RULE, LOST if LOSES_REST in record else record.get(_KIND, UNUSABLE)))


def counts_of(drops: Mapping[str, int]) -> Sequence[tuple[str, int, str]]:
    """Return the reasons why records were left out, each with their number and its remedy, the most frequent first.

    Files that were not read to their end are not among them.
    """
    by_number = sorted(drops.items(), key=lambda each: (-each[1], each[0]))
    return [(reason, count, _REMEDIES.get(reason, "")) for reason, count in by_number if reason != LOST]


def lost_line(records: Iterable[Mapping[str, object]]) -> str | None:
    """Return what the ``records`` of what was left out tell of files that were not read to their end, if any."""
    numbers = [record.get(NUM_LOST) for record in records if LOSES_REST in record]
    if not numbers:
        return None
    known = [number for number in numbers if isinstance(number, int)]
    said = [f"{counted(sum(known), 'record')} left out with {'it' if len(numbers) == 1 else 'them'}"] if known else []
    if len(known) < len(numbers):
        of = f" of {len(numbers) - len(known):,} of them" if known else ""
        said.append(f"the number of records that follow{of} is unknown")
    return f"{counted(len(numbers), 'file, or part of one,', 'files, or parts of some,')} not read to the end: " + (
        ", and ".join(said)
    )


def _hidden(record: Mapping[str, object]) -> str:
    """Return the reason of ``record`` without details; like all reasons, it has the place unless a rule is named."""
    if RULE in record:
        return _NO_DETAILS
    return f"{record['unit']}, position {record['position']}: the record cannot be used; {_NO_DETAILS}"


def _place(record: Mapping[str, object]) -> tuple[object, object]:
    return record.get("unit"), record.get("position")


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
