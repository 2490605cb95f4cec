import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.application.data.row_packer import PackedRows
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking, packing_key, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.ports.token_source import Tokens

SHARDS = st.lists(st.lists(st.integers(1, 30), max_size=6), max_size=5)
PACKINGS = st.one_of(
    st.builds(ConcatPacking, st.integers(2, 9), st.sampled_from(["split", "truncate", "drop"])),
    st.builds(BestFitPacking, st.integers(2, 9), st.sampled_from(["split", "truncate", "drop"]), st.integers(1, 9)),
    st.integers(2, 9).map(lambda length: SlidingPacking(length, length // 2)),
)


def documents_of(shards):
    """Return documents of these lengths, each of ids of its own."""
    number = iter(range(60_000))
    return [[np.array([next(number) for _ in range(length)], np.uint16) for length in shard] for shard in shards]


def fill(cache, documents):
    """Put a shard for each list of ``documents``; return the cache."""
    for number, shard in enumerate(documents):
        ids = np.concatenate([np.zeros(0, np.uint16), *shard])
        hashes = np.array([len(each) * 7919 + int(each[0]) for each in shard], np.uint64)
        cache.put(f"{number:06}", [Tokens(ids, np.cumsum([0, *map(len, shard)]), hashes)], {})
    return cache


def rows_of(packed, packing, numbers=None):
    """Return the tokens of each row, and the lengths of its pieces."""
    numbers = np.arange(packed.num_rows) if numbers is None else numbers
    return [told(place, packing) for place in packed.at(numbers)]


def told(place, packing):
    batch = read_rows([place], packing.length)
    return batch.input_ids[0, : batch.num_tokens].tolist(), batch.starts.tolist()


class CountingCache(MemoryTokenCache):
    """Counts what it is asked to open; what it opened is held until ``let_go``."""

    def __init__(self):
        super().__init__()
        self.opened, self.held = [], {}

    def open(self, shard):
        self.opened.append(shard.name)
        self.held[shard.name] = tokens = super().open(shard)
        return tokens

    def let_go(self):
        self.held.clear()


def choice(holdout):
    return lambda hashes: ~holdout.holds(hashes)


@settings(deadline=None)
@given(SHARDS, PACKINGS, st.sampled_from([0.0, 0.4]), st.data())
def test_a_row_by_its_number_is_the_row_that_packing_makes(shards, packing, fraction, data):
    """Rows are those of each shard's wanted documents, shard behind shard, in whatever order they are asked for."""
    documents, holdout = documents_of(shards), Holdout(fraction, 5)
    cache = fill(MemoryTokenCache(), documents)
    packed = PackedRows(cache, packing, choice(holdout), "key")
    expected, wanted_tokens = [], 0
    for shard, each in zip(cache.shards(), documents, strict=True):
        kept = [
            document for document, held in zip(each, holdout.holds(cache.open(shard).hashes), strict=True) if not held
        ]
        wanted_tokens += sum(map(len, kept))
        expected += [told(place, packing) for place in place_rows(kept, packing)] if kept else []
    assert packed.num_rows == len(expected)
    assert rows_of(packed, packing) == expected
    numbers = data.draw(st.lists(st.integers(0, max(0, len(expected) - 1)), max_size=20 if expected else 0))
    assert rows_of(packed, packing, np.array(numbers, np.int64)) == [expected[number] for number in numbers]
    held = sum(len(tokens) for tokens, _ in expected)
    assert packed.fill == pytest.approx(held / max(1, len(expected) * packing.length))
    if not isinstance(packing, SlidingPacking):
        assert held + packed.dropped == wanted_tokens


def test_a_source_without_shards_has_no_rows():
    """Nothing is no error here: whoever asks for batches says what is missing."""
    packed = PackedRows(MemoryTokenCache(), ConcatPacking(4), choice(Holdout(0.0, 0)), "key")
    assert (packed.num_rows, packed.fill, packed.dropped) == (0, 0.0, 0)
    assert packed.at(np.zeros(0, np.int64)) == []


def test_what_was_derived_once_is_kept_for_the_next_process(tmp_path):
    """A second object on the same cache packs nothing again; another key or another choice has rows of its own."""
    documents = documents_of([[3, 5, 8], [13, 2]])
    fill(DiskTokenCache(tmp_path, "data"), documents)
    packing = ConcatPacking(4)

    def rows(fraction, packing=packing):
        calls = []

        def wanted(hashes):
            calls.append(len(hashes))
            return choice(Holdout(fraction, 1))(hashes)

        key = f"{packing_key(packing)} {fraction}"
        packed = PackedRows(DiskTokenCache(tmp_path, "data"), packing, wanted, key)
        return rows_of(packed, packing), packed.fill, calls

    first, second = rows(0.0), rows(0.0)
    assert (first[2], second[2]) == ([3, 2], [])
    assert first[:2] == second[:2]
    assert rows(0.6)[0] != first[0]
    assert rows(0.0, ConcatPacking(5))[0] != first[0]


def test_a_cache_that_has_grown_has_new_totals(tmp_path):
    """The totals are of the shards that are there, not of those that were when somebody counted first."""
    documents = documents_of([[4], [4, 4], [4, 4, 4]])
    packing = ConcatPacking(4)
    counts = []
    for shards in (1, 3):
        cache = fill(DiskTokenCache(tmp_path, "data"), documents[:shards])
        counts.append(PackedRows(cache, packing, choice(Holdout(0.0, 0)), "key").num_rows)
    assert counts == [1, 6]


def test_more_shards_than_stay_open_are_read(tmp_path):
    """With few shards open at a time, rows of all of them come out right, in any order."""
    documents = documents_of([[3]] * 40)
    cache = fill(DiskTokenCache(tmp_path, "data", max_open=2), documents)
    packing = ConcatPacking(3)
    packed = PackedRows(cache, packing, choice(Holdout(0.0, 0)), "key")
    order = np.random.default_rng(0).permutation(40)
    assert [tokens for tokens, _ in rows_of(packed, packing, order)] == [
        documents[number][0].tolist() for number in order
    ]


def test_a_shard_is_asked_for_again_once_the_source_let_go_of_it():
    """What the source still holds is used as it is, and what it let go of is opened anew, with the same rows."""
    cache, packing = fill(CountingCache(), documents_of([[5, 7], [9]])), ConcatPacking(4)
    packed = PackedRows(cache, packing, choice(Holdout(0.0, 0)), "key")
    first = rows_of(packed, packing)
    cache.opened.clear()
    assert rows_of(packed, packing) == first
    assert cache.opened == []
    cache.let_go()
    assert rows_of(packed, packing) == first
    assert sorted(cache.opened) == ["000000", "000001"]


def test_a_source_is_told_every_ten_seconds_what_is_in_use(monkeypatch):
    """A shard that is read all the time does not look unused to a cache that evicts what was not asked for."""
    cache, packing = fill(CountingCache(), documents_of([[5, 7], [9]])), ConcatPacking(4)
    packed = PackedRows(cache, packing, choice(Holdout(0.0, 0)), "key")
    rows_of(packed, packing)
    cache.opened.clear()
    later = time.monotonic() + 10.1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    rows_of(packed, packing)
    assert sorted(cache.opened) == ["000000", "000001"]
