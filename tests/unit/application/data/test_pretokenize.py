import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.application.data.pretokenize import Prepared, PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.work_part import WorkPart
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import Document, Unit
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from tests.support.encoders import BYTES

END = 256
CORPORA = st.dictionaries(
    st.text("pqrst", min_size=1, max_size=3), st.lists(st.text("abä ", max_size=20), max_size=5), min_size=1
).filter(lambda units: any(text for texts in units.values() for text in texts))


class Watched(ForwardingDataSource):
    """Serves ``units``; ``at`` is called before each document."""

    def __init__(self, units, at=lambda unit, index: None):
        super().__init__(MemoryDataSource(units))
        self.at = at

    def read(self, unit, start=None):
        for item in super().read(unit, start):
            self.at(unit.name, item.start)
            yield item


def prepare(source, cache, *, rejections=None, **options):
    rejections = rejections or RejectedRecords("stop")
    source = MemoryDataSource(source) if isinstance(source, dict) else source
    return PrepareTokens(TextReader(source, BYTES, rejections), cache, rejections, **options).run()


def content(cache):
    """Return name, meta and all tokens of each shard."""
    found = []
    for shard in cache.shards():
        tokens = cache.open(shard)
        arrays = (tokens.ids, tokens.offsets, tokens.hashes)
        found.append((shard, json.dumps(cache.meta(shard)), *(array.tolist() for array in arrays)))
    return found


@settings(deadline=None)
@given(CORPORA, st.sampled_from([1, 20, 50, 10**6]), st.integers(1, 4), st.integers(1, 4))
def test_shards_follow_from_the_source_alone(units, shard_bytes, workers, others):
    """However many threads work, the shards are the same, hold the units in order, and are cut at the same places."""
    one, two = MemoryTokenCache(), MemoryTokenCache()
    prepare(units, one, shard_bytes=shard_bytes, workers=workers)
    prepare(units, two, shard_bytes=shard_bytes, workers=others)
    assert content(one) == content(two)
    ids = [token for _, _, ids, _, _ in content(one) for token in ids]
    texts = [text for name in sorted(units) for text in units[name] if text]
    assert ids == [token for text in texts for token in [*text.encode(), END]]
    if shard_bytes == 1:
        used = [unit for unit in MemoryDataSource(units).units() if unit.size]
        assert sum(shard.num_tokens > 0 for shard in one.shards()) == len(used)


@settings(deadline=None)
@given(CORPORA, st.sampled_from([1, 20, 50]), st.integers(1, 5), st.randoms())
def test_parts_make_the_shards_of_the_whole(units, shard_bytes, count, chance):
    """Several parts, in any order, make each shard once, and together what one process makes."""
    whole, cache = MemoryTokenCache(), MemoryTokenCache()
    undisturbed = prepare(units, whole, shard_bytes=shard_bytes)
    parts = [WorkPart(number, count) for number in range(count)]
    chance.shuffle(parts)
    made = [prepare(units, cache, shard_bytes=shard_bytes, part=part) for part in parts]
    assert content(cache) == content(whole)
    assert sum(each.new_tokens for each in made) == undisturbed.tokens
    assert sum(each.documents for each in made) == undisturbed.documents


@settings(deadline=None)
@given(CORPORA, st.sampled_from([1, 20, 50]), st.integers(0, 30))
def test_what_was_begun_is_finished_to_the_same_shards(units, shard_bytes, documents):
    """Ended after any document and then called again, a preparation leaves what an undisturbed one does."""
    whole, cache, left = MemoryTokenCache(), MemoryTokenCache(), [documents]
    undisturbed = prepare(units, whole, shard_bytes=shard_bytes)

    def fail(*_):
        left[0] -= 1
        if left[0] < 0:
            raise InterruptedError

    try:
        prepare(Watched(units, fail), cache, shard_bytes=shard_bytes, workers=1)
    except InterruptedError:
        begun = sum(shard.num_tokens for shard in cache.shards())
        finished = prepare(units, cache, shard_bytes=shard_bytes)
        assert finished.new_tokens == undisturbed.tokens - begun
    assert content(cache) == content(whole)


def test_the_second_call_reads_nothing():
    """What is there is left as it is; the figures are of all that is there, none of it new."""
    units = {"a": ["one", "two"], "b": ["three"]}
    cache = MemoryTokenCache()
    first = prepare(units, cache, shard_bytes=1)
    read = []
    second = prepare(Watched(units, lambda *place: read.append(place)), cache, shard_bytes=1)
    assert read == []
    assert (first.documents, first.tokens, first.rejected, first.source_bytes, first.new_tokens) == (3, 14, 0, 11, 14)
    assert (second.documents, second.tokens, second.source_bytes, second.new_tokens) == (3, 14, 11, 0)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_first_error_stops_the_others_and_is_raised(workers):
    """An error of the source comes through as it is, whatever thread met it, and other shards are not begun."""
    units = {f"{number:03}": ["some text"] * 3 for number in range(100)}
    begun, cache, rejections = set(), MemoryTokenCache(), RejectedRecords("stop")

    def fail(unit, index):
        begun.add(unit)
        if (unit, index) == ("001", 1):
            raise LookupError(unit)
        if unit > "001":  # so that nobody is through with a shard while the thread that fails waits for a core
            assert preparation._cancelled.wait(60)

    reader = TextReader(Watched(units, fail), BYTES, rejections)
    preparation = PrepareTokens(reader, cache, rejections, shard_bytes=1, workers=workers)
    with pytest.raises(LookupError, match="001"):
        preparation.run()
    assert len(begun) <= 1 + workers
    assert "000001" in cache.missing(["000001"])
    assert not [thread for thread in threading.enumerate() if "holdfast-prepare" in thread.name]


def test_an_error_of_the_tokenizer_is_raised_and_the_same_object_may_go_on():
    """What failed once is no word about the next call."""
    cache, rejections, calls = MemoryTokenCache(), RejectedRecords("stop"), []

    def fail(unit, index):
        calls.append(unit)
        if len(calls) == 2:
            raise RuntimeError(unit)

    source = Watched({"a": ["one"], "b": ["two"], "c": ["three"]}, fail)
    preparation = PrepareTokens(TextReader(source, BYTES, rejections), cache, rejections, shard_bytes=1)
    with pytest.raises(RuntimeError, match=r"[abc]"):
        preparation.run()
    assert preparation.run().documents == 3


def test_rejected_records_are_kept_with_the_tokens_and_recorded_once():
    """Each is written down at the first run that uses the tokens, also one that tokenizes nothing, and once a run."""
    units = {"a": ["one", 3, "two"], "b": [4, "three"]}
    cache = MemoryTokenCache()
    for _ in range(2):
        written = []
        rejections = RejectedRecords("skip", written.append)
        for _ in range(2):
            prepared = prepare(units, cache, rejections=rejections, shard_bytes=1)
            assert prepared.rejected == 2
        assert [(record["unit"], record["position"]) for record in written] == [("a", 1), ("b", 0)]


def test_tokens_that_were_made_by_skipping_do_not_satisfy_a_stricter_run():
    """With ``stop`` a bad record ends the preparation, even if another run has cached the data without it."""
    units = {"a": ["one", 3, "two"]}
    cache = MemoryTokenCache()
    prepare(units, cache, rejections=RejectedRecords("skip"))
    with pytest.raises(DataError, match="document 1"):
        prepare(units, cache)


def test_progress_reaches_the_end():
    """It tells bytes done, growing, and bytes in all: of what is missing, each unit once."""
    told = []
    units = {f"{number}": ["x" * (number + 1)] for number in range(9)}
    prepare(units, MemoryTokenCache(), shard_bytes=5, workers=3, progress=lambda *place: told.append(place))
    assert told.pop(0) == (0, 45)
    assert len(told) == 9
    assert [total for _, total in told] == [45] * 9
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (45, 45)


@pytest.mark.parametrize("units", [{"a": []}, {"a": [""], "b": ["", ""]}])
def test_a_source_without_text_is_an_error_that_names_a_file(units):
    """A corpus that holds nothing to train on is ``DataError``, not an empty cache that a run trips over later."""
    with pytest.raises(DataError, match=r"the first being a|a holds no text"):
        prepare(units, MemoryTokenCache())


def test_a_cache_that_is_too_small_is_told(tmp_path):
    """Shards that had to make room for others of the same source are a sentence, not a smaller corpus."""
    chance = np.random.default_rng(0)
    units = {f"{number}": ["".join(map(chr, chance.integers(97, 123, 1000)))] for number in range(8)}
    cache = DiskTokenCache(tmp_path / "cache", "data", budget=12_000)
    with pytest.raises(ConfigurationError, match=r"data\.cache\.budget"):
        prepare(units, cache, shard_bytes=1, workers=1)


def test_what_comes_later_must_not_have_driven_out_what_was_there(tmp_path):
    """``check`` tells that the shards of a finished preparation have made room for another source's meanwhile."""
    chance = np.random.default_rng(0)
    rejections, preparations = RejectedRecords("stop"), []
    for name in "ab":
        units = {f"{name}{number}": ["".join(map(chr, chance.integers(97, 123, 1000)))] for number in range(4)}
        reader = TextReader(MemoryDataSource(units), BYTES, rejections)
        cache = DiskTokenCache(tmp_path / "cache", name, budget=16_000)
        preparations.append(PrepareTokens(reader, cache, rejections, shard_bytes=1, workers=1))
        preparations[-1].run()
        preparations[-1].check()
    with pytest.raises(ConfigurationError, match=r"data\.cache\.budget"):
        preparations[0].check()


def test_figures_of_several_sources_add_up():
    """A mixture is told as one."""
    one, two = Prepared(1, 2, 3, 4, 5, 0.5), Prepared(10, 20, 30, 40, 50, 0.25)
    assert Prepared.total([one, two]) == Prepared(11, 22, 33, 44, 55, 0.75)


def test_sources_without_sizes_are_prepared():
    """A source that cannot tell how large its units are makes one shard of them."""

    class Sizeless(BasicDataSource):
        def units(self):
            return [Unit(name, 0, "") for name in "ab"]

        def read(self, unit, start=None):
            yield Document(f"text of {unit.name}", 0, 1)

        def fingerprint(self):
            return ""

    cache = MemoryTokenCache()
    assert prepare(Sizeless(), cache).documents == 2
    assert len(cache.shards()) == 1
