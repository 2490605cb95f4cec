import itertools
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.shared.token_store.duplicate_files import DuplicateFiles
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.application.data.deduplicate import Duplicates
from holdfast.application.data.document_keys import ExactKeys
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.shard_meta import total_drops
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.work_part import WorkPart
from holdfast.domain.errors import DataError, RestartNeeded, StateError
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from tests.support import planted_duplicates as planted
from tests.support.encoders import BYTES
from tests.support.planted_duplicates import EXACT, corpus, found, minhash, reader, units_of

SOURCES = st.lists(
    st.dictionaries(st.text("xyz", min_size=1, max_size=2), st.lists(st.sampled_from("abcde")), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


class MemoryKeys:
    """Keeps arrays in memory; ``removed`` are the groups that were removed."""

    def __init__(self):
        self.arrays = {}
        self.removed = []

    def load(self, group, name, only=None, row=None):
        arrays = self.arrays.get((group, name))
        return arrays if arrays is None or row is None else {key: arrays[key][row] for key in only}

    def store(self, group, name, arrays):
        self.arrays[group, name] = {key: array.copy() for key, array in arrays.items()}

    def remove(self, group):
        self.removed.append(group)
        self.arrays = {key: value for key, value in self.arrays.items() if key[0] != group}


def kept(readers, search):
    """Return (source, unit, text) of each document that stays."""
    return [
        (number, unit.name, text)
        for number, (each, duplicates) in enumerate(zip(readers, search.left_out(), strict=True))
        for unit in each.source.units()
        for document, text in each.texts(unit)
        if not duplicates.mask(unit, [document.start])[0]
    ]


@settings(deadline=None)
@given(SOURCES, st.integers(1, 4), st.sampled_from([1, 10**6]))
def test_the_first_by_source_unit_and_position_stays(sources, workers, part_bytes):
    """Of equal texts over all sources the first stays, however many threads read and however keys are divided."""
    readers = [reader(units) for units in sources]
    search = Duplicates(readers, EXACT, MemoryKeys(), workers=workers, part_bytes=part_bytes)
    expected, seen = [], set()
    for number, units in enumerate(sources):
        for name in sorted(units):
            for text in units[name]:
                if text not in seen:
                    expected.append((number, name, text))
                    seen.add(text)
    assert kept(readers, search) == expected


@settings(deadline=None)
@given(SOURCES, st.integers(1, 4), st.randoms())
def test_parts_find_what_the_whole_finds(sources, count, chance):
    """A part waits for the keys of all others; once they are there, each part leaves out the same documents."""
    readers, store = [reader(units) for units in sources], MemoryKeys()
    expected = kept(readers, Duplicates(readers, EXACT, MemoryKeys()))
    parts = [WorkPart(number, count) for number in range(count)]
    chance.shuffle(parts)
    for part in parts[:-1]:
        with suppress(RestartNeeded):
            Duplicates(readers, EXACT, store, part=part).find()
    for part in reversed(parts):
        assert kept(readers, Duplicates(readers, EXACT, store, part=part)) == expected


def test_a_part_says_how_many_units_it_waits_for():
    """The keys of the part's own units are stored; of the others it says how many have none."""
    readers, store = [reader({"x": ["a"], "y": ["b"], "z": ["a"]})], MemoryKeys()
    with pytest.raises(RestartNeeded, match=r"^1 of 3 units, of other parts, .* start part 0/2 again"):
        Duplicates(readers, EXACT, store, part=WorkPart(0, 2)).find()
    assert Duplicates(readers, EXACT, store, part=WorkPart(1, 2)).find()["positions"].tolist() == [0]


def test_one_and_four_workers_find_the_same():
    """The result of MinHash is the same by one and by four threads, and in parts of any size."""
    readers = [reader(units_of(corpus())), reader(units_of(corpus(copies=50)))]
    results = [
        found(Duplicates(readers, minhash(), MemoryKeys(), workers=workers, part_bytes=size))
        for workers, size in itertools.product((1, 4), (10_000, 10**7))
    ]
    assert len(results[0]["positions"]) > 100
    assert all(result == results[0] for result in results)


def test_nearly_all_and_only_similar_pairs_are_found():
    """Against the exact similarity of all pairs, recall at 0.8 is at least 0.95 and precision at least 0.99."""
    texts = corpus()
    sets = [{tuple(words[start : start + 5]) for start in range(len(words) - 4)} for words in map(str.split, texts)]
    index = {}
    for number, shingles in enumerate(sets):
        for shingle in shingles:
            index.setdefault(shingle, []).append(number)
    pairs = {pair for numbers in index.values() for pair in itertools.combinations(numbers, 2)}
    true = {
        later for earlier, later in pairs if len(sets[earlier] & sets[later]) >= 0.8 * len(sets[earlier] | sets[later])
    }
    recall, precision = [], []
    for seed in range(3):
        search = Duplicates([reader({"unit": texts})], minhash(seed=seed), MemoryKeys())
        left_out = set(found(search)["positions"])
        recall.append(len(left_out & true) / len(true))
        precision.append(len(left_out & true) / len(left_out))
    assert len(true) > 100
    assert min(recall) >= 0.95
    assert min(precision) >= 0.99


def test_the_verdict_names_the_document_that_stays():
    """A document that is left out has a reason, and the unit and the position of its survivor."""
    units = {"a": ["one", "two"], "b": ["three", " TWO\n"]}
    first = reader(units)
    (duplicates,) = Duplicates([first], EXACT, MemoryKeys()).left_out()
    verdict = duplicates.verdict(first.source.units()[1], 1)
    assert (verdict.reason, verdict.ends_run) == ("dedup.exact", False)
    assert verdict.detail == "the same text as the document at position 1 of a"


def test_prepared_tokens_are_without_duplicates():
    """Tokens are made of the documents that stay, and the others are counted by reason and written down."""
    units = {"a": ["one", "two", "one"], "b": ["two", "three"]}
    written = []
    rejections = RejectedRecords("stop", written.append)
    plain = TextReader(MemoryDataSource(units), BYTES, rejections)
    before = plain.fingerprints
    plain.left_out = Duplicates([plain], EXACT, MemoryKeys()).left_out()[0]
    cache = MemoryTokenCache()
    prepared = PrepareTokens(plain, cache, rejections, workers=2).run()
    assert prepared.documents == 3
    assert total_drops([cache.meta(shard) for shard in cache.shards()]) == {"dedup.exact": 2}
    assert {(record["unit"], record["position"], record["rule"]) for record in written} == {
        ("a", 2, "dedup.exact"),
        ("b", 0, "dedup.exact"),
    }
    assert plain.fingerprints[: len(before)] == before
    assert len(plain.fingerprints) == len(before) + 1


def test_fingerprints_depend_on_the_rule_and_on_earlier_sources():
    """What is left out of a source depends on the rule and on the sources before it, not on those after it."""
    first, second, third = ({"a": [text]} for text in ("one", "two", "three"))

    def prints(sources, keys=EXACT):
        search = Duplicates([reader(units) for units in sources], keys, MemoryKeys())
        return [each.fingerprint() for each in search.left_out()]

    assert prints([first, second]) == prints([first, second, third])[:2]
    assert prints([first, second])[1] != prints([third, second])[1]
    rules = [EXACT, ExactKeys(normalize=False), minhash(), minhash(0.7), minhash(seed=1), minhash(bands=14)]
    assert len({prints([first], keys)[0] for keys in rules}) == len(rules)


def test_the_result_is_stored_and_the_keys_are_removed():
    """A second search reads no document, and only the result stays in the store."""
    store = MemoryKeys()
    units = {"a": ["one", "one"], "b": ["one"]}
    first = found(Duplicates([reader(units)], EXACT, store))
    assert [name for _, name in store.arrays] == ["decision"]
    again = reader(units)
    assert found(Duplicates([again], EXACT, store)) == first
    assert again.source.bytes_read == 0


def test_progress_counts_the_bytes_of_missing_units():
    """Progress begins at nothing and ends at the size of the units that had no keys."""
    shown = []
    source = reader({"a": ["one"], "b": ["three"]})
    Duplicates([source], EXACT, MemoryKeys(), progress=lambda *each: shown.append(each), workers=2).find()
    total = sum(unit.size for unit in source.source.units())
    assert (shown[0], shown[-1]) == ((0, total), (total, total))


class Failing(ForwardingDataSource):
    def __init__(self, units):
        super().__init__(MemoryDataSource(units))

    def read(self, unit, start=None):
        if unit.name == "b":
            msg = "b is gone"
            raise DataError(msg)
        yield from super().read(unit, start)


def test_an_error_of_reading_ends_the_search():
    """The error of a source is raised, and the units that were read are not read again."""
    units = {"a": ["one"], "b": ["one"]}
    store = MemoryKeys()
    failing = TextReader(Failing(units), BYTES, RejectedRecords("skip"))
    with pytest.raises(DataError, match="b is gone"):
        Duplicates([failing], EXACT, store).find()
    whole = reader(units)
    assert found(Duplicates([whole], EXACT, store))["positions"] == [0]
    assert whole.source.bytes_read == len("one")


def test_a_search_that_another_process_finished_is_not_done_again():
    """If the keys vanish because another process is ready, its result is used."""
    store = MemoryKeys()
    search = Duplicates([reader({"a": ["one", "one"]})], EXACT, store)
    expected = found(Duplicates([reader({"a": ["one", "one"]})], EXACT, MemoryKeys()))

    class Late(MemoryKeys):
        def load(self, group, name, only=None, row=None):
            if name == "000000-000000" and (group, name) in self.arrays:
                search.find()
                self.remove(group)
                self.arrays |= store.arrays
            return super().load(group, name, only, row)

    assert found(Duplicates([reader({"a": ["one", "one"]})], EXACT, Late())) == expected


def test_keys_that_vanish_again_and_again_are_an_error():
    """A store that loses all keys ends the search with a sentence."""

    class Forgetful(MemoryKeys):
        def load(self, group, name, only=None, row=None):
            return None

    with pytest.raises(StateError, match="again and again"):
        Duplicates([reader({"a": ["one", "one"]})], EXACT, Forgetful()).find()


def test_many_threads_search_once():
    """Threads that ask at the same time wait for one search."""
    source = reader(units_of(corpus(copies=50)))
    (duplicates,) = Duplicates([source], EXACT, MemoryKeys()).left_out()
    unit = source.source.units()[0]
    masks = []
    threads = [threading.Thread(target=lambda: masks.append(duplicates.mask(unit, [0, 1]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(masks) == 4
    assert source.source.bytes_read == sum(len(text) for text in corpus(copies=50))


def test_a_killed_search_continues(tmp_path):
    """A search that is killed twice reads only what is missing, and finds what an undisturbed one finds."""
    for units in (3, 5):
        command = [sys.executable, "-m", planted.__name__, str(units), str(tmp_path)]
        ended = subprocess.run(command, cwd=Path(__file__).parents[4], check=False, timeout=60)
        assert ended.returncode == -signal.SIGKILL
    source = reader(units_of(corpus()))
    result = found(Duplicates([source], minhash(), DuplicateFiles(tmp_path), workers=2))
    assert result == found(Duplicates([reader(units_of(corpus()))], minhash(), MemoryKeys()))
    assert 0 < source.source.bytes_read == sum(len(text) for text in corpus()[8 * 50 :])


def test_damaged_keys_are_computed_again(tmp_path):
    """Keys with wrong bytes count as missing, so that the result is right."""
    command = [sys.executable, "-m", planted.__name__, "4", str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[4], check=False, timeout=60)
    damaged = next(tmp_path.glob(".duplicates/*/000001-000000.safetensors"))
    data = bytearray(damaged.read_bytes())
    data[-100] ^= 1
    damaged.write_bytes(data)
    source = reader(units_of(corpus()))
    result = found(Duplicates([source], minhash(), DuplicateFiles(tmp_path)))
    assert result == found(Duplicates([reader(units_of(corpus()))], minhash(), MemoryKeys()))
    assert source.source.bytes_read == sum(len(text) for text in [*corpus()[50:100], *corpus()[200:]])


def test_masks_of_positions_in_any_order():
    """A mask has the order of the positions that are asked for, and unknown positions stay."""
    source = reader({"a": ["one", "one", "two", "one"]})
    (duplicates,) = Duplicates([source], EXACT, MemoryKeys()).left_out()
    unit = source.source.units()[0]
    assert duplicates.mask(unit, [3, 0, 9, 1]).tolist() == [True, False, False, True]
    assert duplicates.mask(unit, []).dtype == np.bool_
