"""A base class that forwards to a data source."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from typing_extensions import override

from holdfast.ports.data_source import DataSource, Document, Rejected, Remark, Unit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from holdfast.domain.data.data_files import DataFiles


class ForwardingDataSource(DataSource):
    """Serves the documents of ``inner``; the result of ``only`` is not wrapped, that of ``confirming`` is a copy."""

    def __init__(self, inner: DataSource) -> None:
        self.inner = inner

    @override
    def units(self) -> Sequence[Unit]:
        return self.inner.units()

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        return self.inner.read(unit, start)

    @override
    def confirming(self) -> DataSource:
        inner = self.inner.confirming()
        if inner is self.inner:
            return self
        other = copy(self)
        other.inner = inner
        return other

    @override
    def expect(self, unit: Unit, start: int | None = None) -> None:
        self.inner.expect(unit, start)

    @property
    @override
    def fetches_ahead(self) -> bool:
        return self.inner.fetches_ahead

    @override
    def tell(self, unit: Unit, rejected: Rejected) -> str:
        return self.inner.tell(unit, rejected)

    @override
    def release(self) -> None:
        self.inner.release()

    @override
    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    @override
    def files(self) -> DataFiles | None:
        return self.inner.files()

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        return self.inner.identify(known)

    @override
    def only(self, names: Collection[str]) -> DataSource | None:
        return self.inner.only(names)

    @override
    def remarks(self) -> Sequence[Remark]:
        return self.inner.remarks()

    @property
    @override
    def bytes_read(self) -> int:
        return self.inner.bytes_read

    @property
    @override
    def read_retries(self) -> int:
        return self.inner.read_retries
