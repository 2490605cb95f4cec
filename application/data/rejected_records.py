"""Records of the data that cannot be used: reported as an error, or skipped and counted."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Literal, final

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.ports.data_source import Rejected, Unit

OnError = Literal["stop", "skip"]
Record = dict[str, object]


@final
class RejectedRecords:
    """Ends the run at the first record that cannot be used, or writes down each once, with its reason, and goes on.

    ``write`` gets source, position and reason as JSON. ``known`` is what earlier processes wrote: data that are read
    again, after a resume or in another epoch, are not counted again. Usable from several threads.
    """

    def __init__(
        self,
        on_error: OnError,
        write: Callable[[Mapping[str, object]], object] = lambda _: None,
        known: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self._on_error = on_error
        self._write = write
        self._known = {_place(record) for record in known}
        self._lock = Lock()

    @property
    def count(self) -> int:
        """Return how many records were left out since the run began."""
        return len(self._known)

    def reject(self, unit: Unit, rejected: Rejected, tell: Callable[[Unit, Rejected], str] | None = None) -> Record:
        """Return ``rejected`` as it is to be written down; raises ``DataError`` with its reason if it ends the run.

        ``tell`` gives the reason then with all that a person may want to know.
        """
        reason = rejected.reason if tell is None or self._on_error == "skip" else tell(unit, rejected)
        record: Record = {"unit": unit.name, "position": rejected.start, "reason": reason}
        self._refuse(record)
        return record

    def record(self, rejection: Mapping[str, object]) -> None:
        """Write down what was left out, unless it was before; raises ``DataError`` if it ends the run.

        So tokens that were prepared without some records do not let a run pass that is to end at the first of them.
        """
        self._refuse(rejection)
        with self._lock:
            place = _place(rejection)
            if place not in self._known:
                self._known.add(place)
                self._write(rejection)

    def _refuse(self, record: Mapping[str, object]) -> None:
        if self._on_error == "stop":
            msg = f"{record['reason']} (to skip records that cannot be used: data.on_error=skip)"
            raise DataError(msg)


def _place(record: Mapping[str, object]) -> tuple[object, object]:
    return record.get("unit"), record.get("position")
