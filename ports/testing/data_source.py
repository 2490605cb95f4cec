"""The contract of ``DataSource``."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import pytest

from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ports.data_source import DataSource, Unit


class DataSourceContract:
    """The contract of every ``DataSource``; derive and override the fixtures.

    ``source`` has at least two units, and one of them has at least three documents. ``tells_bytes`` is True if the
    source counts the bytes that it has read.
    """

    tells_bytes: ClassVar[bool] = False

    @pytest.fixture
    def source(self) -> DataSource:
        """Return the source under test."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self) -> Callable[[], DataSource]:
        """Return a function that opens the data of ``source`` as another process would."""
        raise NotImplementedError

    @pytest.fixture
    def change(self) -> Callable[[], None]:
        """Return a function that changes the bytes of one unit for later readers."""
        raise NotImplementedError

    @pytest.fixture
    def damaged(self) -> tuple[DataSource, int]:
        """Return a source of one unit of three records, the second of them bad, and the start of the bad record."""
        raise NotImplementedError

    @pytest.fixture
    def empty(self) -> DataSource:
        """Return a source that finds no unit."""
        raise NotImplementedError

    def long_unit(self, source: DataSource) -> Unit:
        """Return a unit of three documents or more."""
        found = [unit for unit in source.units() if len(list(source.read(unit))) >= 3]
        assert found, "the contract needs a source with three documents in a unit"
        return found[0]

    def test_units_are_sorted_by_their_unique_names(self, source: DataSource) -> None:
        """Units come sorted by name, no name twice, and at least one."""
        names = [unit.name for unit in source.units()]
        assert len(names) >= 2, "the contract needs a source with two units"
        assert names == sorted(set(names))

    def test_units_are_the_same_each_time(self, source: DataSource, reopen: Callable[[], DataSource]) -> None:
        """A second call, or a call in another process, returns the same units in the same order."""
        units = list(source.units())
        assert list(source.units()) == units
        assert list(reopen().units()) == units

    def test_no_unit_is_an_error_that_says_what_was_looked_for(self, empty: DataSource) -> None:
        """A source that finds no data raises ``DataError``, and its message is a sentence."""
        with pytest.raises(DataError, match=r"\w+ \w+"):
            empty.units()

    def test_documents_are_the_same_each_time(self, source: DataSource, reopen: Callable[[], DataSource]) -> None:
        """Reading a unit twice, or in another process, gives the same documents at the same positions."""
        again = reopen()
        for unit in source.units():
            documents = list(source.read(unit))
            assert list(source.read(unit)) == documents
            assert list(again.read(unit)) == documents

    def test_the_start_of_a_unit_is_where_it_is_read_from(self, source: DataSource) -> None:
        """Reading a unit from its own start gives all of its documents."""
        for unit in source.units():
            assert list(source.read(unit, unit.start)) == list(source.read(unit))

    def test_positions_grow(self, source: DataSource) -> None:
        """Each document starts at or after the end of the previous document, and ends after its own start."""
        for unit in source.units():
            end = unit.start
            for document in source.read(unit):
                assert document.end is not None
                assert end <= document.start < document.end
                end = document.end

    def test_documents_begin_in_their_unit(self, source: DataSource) -> None:
        """Each document begins between the start and the stop of its unit."""
        for unit in source.units():
            for document in source.read(unit):
                assert unit.start <= document.start
                assert unit.stop is None or document.start < unit.stop

    def test_resumes_behind_every_document(self, source: DataSource, reopen: Callable[[], DataSource]) -> None:
        """Reading from the end of any document gives exactly the later documents: none is lost, none comes twice."""
        again = reopen()
        for unit in source.units():
            documents = list(source.read(unit))
            for index, document in enumerate(documents):
                assert list(again.read(unit, document.end)) == documents[index + 1 :]

    def test_resumes_at_every_document(self, source: DataSource, reopen: Callable[[], DataSource]) -> None:
        """Reading from the start of a document gives this document and the later ones, so that it can be read again."""
        again = reopen()
        for unit in source.units():
            documents = list(source.read(unit))
            for index, document in enumerate(documents):
                assert list(again.read(unit, document.start)) == documents[index:]

    def test_a_cut_behind_a_cut_resumes_too(self, source: DataSource) -> None:
        """Positions from a resumed reading can be resumed from like positions from the first reading."""
        unit = self.long_unit(source)
        documents = list(source.read(unit))
        resumed = list(source.read(unit, documents[0].end))
        assert list(source.read(unit, resumed[0].end)) == documents[2:]

    def test_a_unit_ends_and_stays_ended(self, source: DataSource) -> None:
        """Reading after the last document yields nothing, however often it is repeated."""
        for unit in source.units():
            reading = source.read(unit)
            documents = list(reading)
            assert next(reading, None) is None
            assert next(reading, None) is None
            if documents:
                assert list(source.read(unit, documents[-1].end)) == []

    def test_a_bad_record_is_rejected_where_it_lies(self, damaged: tuple[DataSource, int]) -> None:
        """An unusable record is yielded as ``Rejected`` at its place, followed by the other documents."""
        source, position = damaged
        (unit,) = source.units()
        first, bad, last = source.read(unit)
        assert isinstance(first, Document)
        assert isinstance(last, Document)
        assert isinstance(bad, Rejected)
        assert bad.start == position
        assert unit.name in bad.reason
        end = bad.end or position + 1
        assert any(position <= int(number) < end for number in re.findall(r"\d+", bad.reason.replace(unit.name, "")))
        assert "\n" not in bad.reason

    def test_resumes_around_a_bad_record(self, damaged: tuple[DataSource, int]) -> None:
        """Reading from the start or the end of a bad record yields exactly the documents that follow it."""
        source, _ = damaged
        (unit,) = source.units()
        items = list(source.read(unit))
        for index, item in enumerate(items):
            assert list(source.read(unit, item.start)) == items[index:]
            if item.end is not None:
                assert list(source.read(unit, item.end)) == items[index + 1 :]

    def test_a_reading_that_ends_early_says_so_last(self, damaged: tuple[DataSource, int]) -> None:
        """A ``Rejected`` without ``end`` is the last item."""
        source, _ = damaged
        (unit,) = source.units()
        assert all(item.end is not None for item in list(source.read(unit))[:-1])

    def test_the_fingerprint_is_equal_while_nothing_changes(
        self, source: DataSource, reopen: Callable[[], DataSource]
    ) -> None:
        """The fingerprint is the same before and after reading, and when the source is opened again."""
        fingerprint = source.fingerprint()
        for unit in source.units():
            list(source.read(unit))
        assert fingerprint
        assert source.fingerprint() == fingerprint
        assert reopen().fingerprint() == fingerprint

    def test_the_fingerprint_changes_with_the_bytes(
        self, source: DataSource, reopen: Callable[[], DataSource], change: Callable[[], None]
    ) -> None:
        """If the bytes of one unit change, the fingerprint and the etag of one unit change."""
        before, etags = source.fingerprint(), {unit.etag for unit in source.units()}
        change()
        after = reopen()
        assert after.fingerprint() != before
        assert {unit.etag for unit in after.units()} != etags

    def test_several_threads_read_at_once(self, source: DataSource) -> None:
        """Several threads can read the same unit, or different units, at the same time."""
        units = list(source.units())

        def read_all(turn: int) -> dict[str, Sequence[Document | Rejected]]:
            turned = units[turn % len(units) :] + units[: turn % len(units)]
            return {unit.name: list(source.read(unit)) for unit in turned}

        expected = read_all(0)
        with ThreadPoolExecutor(8) as pool:
            assert all(found == expected for found in pool.map(read_all, range(32)))

    def test_what_was_read_is_counted(self, source: DataSource) -> None:
        """``bytes_read`` increases with each reading, or stays 0 if the source does not count bytes."""
        told = []
        for _ in range(3):
            told.append(source.bytes_read)
            for unit in source.units():
                list(source.read(unit))
        assert [number > before for before, number in pairwise(told)] == [self.tells_bytes] * 2
        assert told[0] >= 0
        assert self.tells_bytes or told == [0, 0, 0]

    def test_what_was_read_never_falls(self, source: DataSource) -> None:
        """The counts can be read while several other threads read units, and they never decrease."""
        units = list(source.units())
        told = [(source.bytes_read, source.read_retries)]
        with ThreadPoolExecutor(4) as pool:
            readings = [pool.submit(lambda unit: list(source.read(unit)), unit) for unit in units * 4]
            while wait(readings, timeout=0.001).not_done:
                told.append((source.bytes_read, source.read_retries))
        told.append((source.bytes_read, source.read_retries))
        assert [reading.exception() for reading in readings] == [None] * len(readings)
        for numbers in zip(*told, strict=True):
            assert list(numbers) == sorted(numbers)

    def test_two_readings_of_a_unit_are_independent(self, source: DataSource) -> None:
        """Two iterators over one unit, advanced in turn, each give all of its documents."""
        unit = self.long_unit(source)
        first, second = source.read(unit), source.read(unit)
        pairs = list(zip(first, second, strict=True))
        assert [document for document, _ in pairs] == [document for _, document in pairs] == list(source.read(unit))
