"""A data source that joins several data sources."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.domain.data.data_files import DataFiles, join, part_of
from holdfast.domain.errors import DataError
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import DataSource, Rejected, Remark, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.ports.data_source import Document


@final
class MixtureDataSource(BasicDataSource):
    """Serves the units of all its ``parts``, each named ``part: unit``; the order among the parts is decided elsewhere.

    A tokenizer is therefore trained on all parts, and the fingerprint of a run's data covers all parts. A ``DataError``
    of a part is raised with the part's name.
    """

    def __init__(self, parts: Mapping[str, DataSource]) -> None:
        self.parts = dict(sorted(parts.items()))

    @override
    def units(self) -> Sequence[Unit]:
        return [unit for unit, _, _ in self._units.values()]

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        if unit.name not in self._units:
            msg = f"{unit.name} is not in this mixture"
            raise DataError(msg)
        _, part, inner = self._units[unit.name]
        for item in self.parts[part].read(inner, start):
            yield replace(item, reason=f"{part}: {item.reason}") if isinstance(item, Rejected) else item

    @override
    def confirming(self) -> MixtureDataSource:
        return MixtureDataSource({name: part.confirming() for name, part in self.parts.items()})

    @override
    def tell(self, unit: Unit, rejected: Rejected) -> str:
        _, part, inner = self._units[unit.name]
        reason = rejected.reason.removeprefix(f"{part}: ")
        return f"{part}: {self.parts[part].tell(inner, replace(rejected, reason=reason))}"

    @override
    def fingerprint(self) -> str:
        known = "".join(f"{len(name)}:{name}{part.fingerprint()};" for name, part in self.parts.items())
        return blake2b(known.encode(), digest_size=16).hexdigest()

    @override
    def files(self) -> DataFiles | None:
        return _joined({name: part.files() for name, part in self.parts.items()})

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        parts = self.parts.items()
        return _joined({name: part.identify(None if known is None else part_of(known, name)) for name, part in parts})

    @override
    def remarks(self) -> Sequence[Remark]:
        return [
            replace(each, sentence=f"{name}: {each.sentence}")
            for name, part in self.parts.items()
            for each in part.remarks()
        ]

    @property
    @override
    def bytes_read(self) -> int:
        return sum(part.bytes_read for part in self.parts.values())

    @property
    @override
    def read_retries(self) -> int:
        return sum(part.read_retries for part in self.parts.values())

    @cached_property
    def _units(self) -> Mapping[str, tuple[Unit, str, Unit]]:
        units = {}
        for name, part in sorted(self.parts.items(), key=lambda each: f"{each[0]}: "):
            for inner in part.units():  # the files of a moved source keep their order
                unit = replace(inner, name=f"{name}: {inner.name}")
                units[unit.name] = (unit, name, inner)
        return units


def _joined(parts: Mapping[str, DataFiles | None]) -> DataFiles | None:
    known = {name: part for name, part in parts.items() if part is not None}
    return join(known) if len(known) == len(parts) else None
