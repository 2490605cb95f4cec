"""A data source of documents in memory."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.data_source.formats.records import fingerprint_of
from holdfast.domain.errors import DataError
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import Document, Rejected, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@final
class MemoryDataSource(BasicDataSource):
    """Serves documents from ``units``, the texts of each unit by its name, copied; a position is an index in its unit.

    ``bytes_read`` counts the UTF-8 bytes of the documents that it has yielded.
    """

    def __init__(self, units: Mapping[str, Sequence[str]]) -> None:
        self._texts = {name: tuple(units[name]) for name in sorted(units)}
        self._lock = Lock()
        self._bytes_read = 0

    @override
    def units(self) -> Sequence[Unit]:
        if not self._texts:
            msg = "the data source in memory has no units: give it at least one"
            raise DataError(msg)
        return [_unit_of(name, texts) for name, texts in self._texts.items()]

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        texts = self._texts.get(unit.name)
        if texts is None:
            msg = f"the data source in memory has no unit {unit.name!r}"
            raise DataError(msg)
        for index in range(start or 0, len(texts)):
            text: object = texts[index]
            if isinstance(text, str):
                self._count(text)
                yield Document(text, index, index + 1)
            else:
                reason = f"{unit.name}: document {index} is {type(text).__name__}, not text: leave it out"
                yield Rejected(reason, index, index + 1)

    @override
    def fingerprint(self) -> str:
        return fingerprint_of([[unit.name, unit.etag] for unit in self.units()])

    @property
    @override
    def bytes_read(self) -> int:
        return self._bytes_read

    def _count(self, text: str) -> None:
        size = _size_of(text)
        with self._lock:
            self._bytes_read += size


def _unit_of(name: str, texts: Sequence[str]) -> Unit:
    size = sum(_size_of(text) for text in texts if isinstance(text, str))
    return Unit(name, size, etag=fingerprint_of(texts))


def _size_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
