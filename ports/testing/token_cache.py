"""The contract of ``TokenCache``."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.testing.token_source import DOCUMENTS, Documents, TokenSourceContract, documents_in, lengths_of
from holdfast.ports.token_source import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.domain.data.cache_eviction import CachedShard, EvictionPolicy
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import TokenSource

_LARGE = 30_000
"""The number of tokens of a large shard: 60 kB; the cache must add less than 10 kB to it."""
_ROOM_FOR_TWO = 150_000

_DOCUMENTS = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=5), max_size=8)


def tokens_of(
    documents: Documents, dtype: type[np.unsignedinteger] = np.uint16, *, modulus: int | None = None
) -> Tokens:
    """Return the flat documents: ``ids`` of ``dtype``, and as ``hashes`` the hash of each document's ids.

    With ``modulus`` there is a loss mask: ids that it divides are not trained on.
    """
    ids = np.array([token for document in documents for token in document], dtype)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    hashes = np.array([hash(tuple(document)) % 2**64 for document in documents], np.uint64)
    return Tokens(ids, offsets, hashes, None if modulus is None else ids % modulus != 0)


def mask_in(tokens: Tokens) -> list[bool] | None:
    """Return the loss mask as a list, None if there is none."""
    return None if tokens.loss_mask is None else tokens.loss_mask[:].tolist()


def large(number: int) -> list[Tokens]:
    """Return the only part of a shard of 60 kB; its tokens are all ``number``."""
    return [tokens_of([[number] * _LARGE])]


class NewCache(Protocol):
    """Creates a new, empty cache at each call."""

    def __call__(self, *, budget: int | None = None, eviction: EvictionPolicy | None = None) -> TokenCache: ...


class _ByName:
    """Evicts shards in alphabetical order."""

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        return sorted(shards, key=lambda shard: shard.name)


class TokenCacheContract(TokenSourceContract):
    """The contract of every ``TokenCache``, beyond that of ``TokenSource``; derive and override ``new_cache``."""

    @pytest.fixture
    def new_cache(self) -> NewCache:
        """Return a function that creates an empty cache."""
        raise NotImplementedError

    @pytest.fixture
    def new_source(self, new_cache: NewCache) -> Callable[[Documents], TokenSource]:
        """Return a function that puts documents into a new cache as three shards."""

        def new(documents: Documents) -> TokenSource:
            cache = new_cache()
            for name, part in (("1", documents[2:5]), ("0", documents[:2]), ("2", documents[5:])):
                cache.put(name, [tokens_of(part)], {})
            return cache

        return new

    @pytest.fixture
    def cache(self, new_cache: NewCache) -> TokenCache:
        """Return an empty cache without a budget."""
        return new_cache()

    def test_an_empty_cache_lacks_everything(self, cache: TokenCache) -> None:
        """Before the first ``put`` there are no shards, and every name is missing."""
        assert list(cache.shards()) == []
        assert cache.missing(["b", "a"]) == ["b", "a"]

    def test_a_shard_is_its_parts_in_order(self, new_cache: NewCache) -> None:
        """Any parts of any documents, also empty ones, are read back in their order, with their hashes."""

        @settings(deadline=None, max_examples=20)
        @given(st.lists(_DOCUMENTS, max_size=4), st.sampled_from([np.uint16, np.uint32]))
        def check(parts: list[Documents], dtype: type[np.unsignedinteger]) -> None:
            cache = new_cache()
            shard = cache.put("a", [tokens_of(part, dtype) for part in parts], {})
            whole = tokens_of([document for part in parts for document in part])
            opened = cache.open(shard)
            assert documents_in(opened) == documents_in(whole)
            assert opened.hashes.tolist() == whole.hashes.tolist()
            assert opened.ids.dtype == dtype or not parts
            assert (shard.num_tokens, shard.num_documents) == (len(whole.ids), len(whole.hashes))

        check()

    def test_a_loss_mask_is_kept(
        self, new_cache: NewCache, reopen: Callable[[TokenSource], TokenCache], destroy: Callable[[TokenSource], object]
    ) -> None:
        """Each token keeps its bit of the loss mask, whatever the parts, and all are true in a part without a mask."""

        @settings(deadline=None, max_examples=20)
        @given(st.lists(st.tuples(_DOCUMENTS, st.sampled_from([None, 2, 3])), max_size=4))
        def check(parts: list[tuple[Documents, int | None]]) -> None:
            cache = new_cache()
            shard = cache.put("a", [tokens_of(part, modulus=modulus) for part, modulus in parts], {})
            is_masked = any(modulus is not None for _, modulus in parts)
            bits = [
                modulus is None or id_ % modulus != 0 for part, modulus in parts for each in part for id_ in each
            ]  # fmt: skip
            opened = [cache.open(shard), reopen(cache).open(shard)]
            destroy(cache)
            for tokens in opened:
                assert mask_in(tokens) == (bits if is_masked else None)
                if tokens.loss_mask is not None:
                    assert len(tokens.loss_mask) == len(bits)
                    assert tokens.loss_mask[3:9].tolist() == bits[3:9]

        check()

    def test_a_fingerprint_covers_the_loss_mask(self, new_cache: NewCache) -> None:
        """Equal ids with another loss mask, or none, are another shard, and other parts are not."""
        documents = [[0, 1, 2], [*range(30)], [6, 6]]
        caches = [new_cache() for _ in range(4)]
        shards = [
            cache.put("a", [tokens_of(documents, modulus=modulus)], {})
            for cache, modulus in zip(caches, (None, 2, 3), strict=False)
        ]
        assert len({shard.fingerprint for shard in shards}) == len({each.fingerprint() for each in caches[:3]}) == 3
        cut = [tokens_of([document], modulus=3) for document in documents]
        assert caches[3].put("a", cut, {}) == shards[2]

    def test_a_shard_that_was_put_is_there(
        self, cache: TokenCache, reopen: Callable[[TokenSource], TokenCache]
    ) -> None:
        """The result of ``put`` is listed, also by another process, and its name is no longer missing."""
        shard = cache.put("a", [tokens_of(DOCUMENTS)], {})
        for each in (cache, reopen(cache)):
            assert list(each.shards()) == [shard]
            assert each.missing(iter(["c", "a", "b"])) == ["c", "b"]
            assert documents_in(each.open(shard)) == DOCUMENTS

    def test_meta_is_kept(self, cache: TokenCache, reopen: Callable[[TokenSource], TokenCache]) -> None:
        """``meta`` is returned unchanged, and later changes of the argument have no effect on it."""
        meta = {"read": ["a.txt", {"bytes": 3}], "none": None, "ü": "\ud800"}
        shard = cache.put("a", [], meta)
        expected = {**meta}
        meta["read"] = "changed"
        assert cache.meta(shard) == reopen(cache).meta(shard) == expected

    def test_parts_may_fill_in_the_meta(self, cache: TokenCache) -> None:
        """``meta`` is read after the last part, so that parts can fill it in."""
        meta: dict[str, object] = {}

        def parts() -> Iterator[Tokens]:
            yield tokens_of(DOCUMENTS)
            meta["documents"] = len(DOCUMENTS)

        assert cache.meta(cache.put("a", parts(), meta)) == {"documents": len(DOCUMENTS)}

    def test_parts_may_share_one_array(self, cache: TokenCache) -> None:
        """A part is copied before the next part is requested, so that all parts can share one buffer."""
        ids = np.zeros(2, np.uint16)

        def parts() -> Iterator[Tokens]:
            for number in range(3):
                ids[:] = number
                yield Tokens(ids, np.array([0, 2]), np.zeros(1, np.uint64))

        assert documents_in(cache.open(cache.put("a", parts(), {}))) == [[0, 0], [1, 1], [2, 2]]

    @pytest.mark.parametrize("error", [ValueError("a part's own"), OSError(28, "not the cache's"), KeyboardInterrupt()])
    def test_a_part_that_fails_leaves_nothing(self, cache: TokenCache, error: BaseException) -> None:
        """An exception of a part propagates unchanged, no shard is written, and the next ``put`` writes it."""

        def parts() -> Iterator[Tokens]:
            yield tokens_of(DOCUMENTS)
            raise error

        with pytest.raises(type(error)) as caught:
            cache.put("a", parts(), {})
        assert caught.value is error
        assert (list(cache.shards()), cache.missing(["a"])) == ([], ["a"])
        assert documents_in(cache.open(cache.put("a", [tokens_of(DOCUMENTS)], {}))) == DOCUMENTS

    def test_a_shard_that_is_there_stays(self, cache: TokenCache) -> None:
        """``put`` of an existing name returns the existing shard, with its tokens and ``meta`` unchanged."""
        shard = cache.put("a", [tokens_of(DOCUMENTS)], {"first": True})
        assert cache.put("a", [tokens_of([[1]])], {"first": False}) == shard
        assert documents_in(cache.open(shard)) == DOCUMENTS
        assert cache.meta(shard) == {"first": True}

    def test_a_fingerprint_does_not_tell_how_parts_were_cut(self, new_cache: NewCache) -> None:
        """The same documents in other parts give the same shard and the same fingerprint."""
        whole, cut = new_cache(), new_cache()
        one = whole.put("a", [tokens_of(DOCUMENTS)], {})
        assert one == cut.put("a", [tokens_of([document]) for document in DOCUMENTS], {})
        assert whole.fingerprint() == cut.fingerprint()

    @pytest.mark.parametrize("name", ["s3://bucket/a b/c.parquet#3", "../up", "x" * 300, "", ".", "Ü\n\0\ud800"])
    def test_any_text_is_a_name(self, cache: TokenCache, name: str) -> None:
        """A name may have any characters and any length, and similar names are different shards."""
        shard = cache.put(name, [tokens_of([[1]])], {})
        assert cache.missing([name, f"{name}x", f"{name}-"]) == [f"{name}x", f"{name}-"]
        assert shard.name == name
        assert documents_in(cache.open(shard)) == [[1]]

    def test_several_threads_put(self, cache: TokenCache) -> None:
        """Threads that put several shards, some with equal names, leave each shard complete."""
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda number: cache.put(f"{number % 6}", [tokens_of([[number % 6]])], {}), range(24)))
        assert len(set(made)) == 6
        assert [documents_in(cache.open(shard)) for shard in cache.shards()] == [[[number]] for number in range(6)]

    def test_a_full_cache_makes_room(self, new_cache: NewCache) -> None:
        """Above the budget, the least recently read shard is evicted and is then missing."""
        cache = new_cache(budget=_ROOM_FOR_TWO)
        first, second = (cache.put(name, large(1), {}) for name in "ab")
        for shard in (second, first):
            cache.open(shard)
        cache.put("c", large(3), {})
        assert [shard.name for shard in cache.shards()] == ["a", "c"]
        assert cache.missing("abc") == ["b"]
        with pytest.raises(DataError, match="'b'"):
            cache.open(second)
        assert cache.put("b", large(1), {}) == second

    def test_a_policy_chooses_what_goes(self, new_cache: NewCache) -> None:
        """The cache evicts the shard that its eviction policy chooses."""
        cache = new_cache(budget=_ROOM_FOR_TWO, eviction=_ByName())
        for name in "bac":
            cache.put(name, large(1), {})
        assert [shard.name for shard in cache.shards()] == ["b", "c"]

    def test_what_is_in_use_stays(self, new_cache: NewCache) -> None:
        """A shard is not evicted while its tokens are in use."""
        cache = new_cache(budget=_ROOM_FOR_TWO)
        held = cache.open(cache.put("a", large(1), {}))
        for name in "bcd":
            cache.put(name, large(2), {})
        assert [shard.name for shard in cache.shards()] == ["a", "d"]
        assert held.ids[:1].tolist() == [1]

    def test_a_budget_below_what_is_in_use_is_told(self, new_cache: NewCache) -> None:
        """If shards in use and a new one exceed the budget, ``ConfigurationError`` says the bytes; none is evicted."""
        cache = new_cache(budget=_ROOM_FOR_TWO)
        held = [cache.open(cache.put(name, large(1), {})) for name in "ab"]
        with pytest.raises(ConfigurationError) as caught:
            cache.put("c", large(1), {})
        needed = max(map(int, re.findall(r"\d+", str(caught.value))))
        assert 3 * 2 * _LARGE < needed < 3 * 2 * _LARGE + 30_000
        assert [shard.name for shard in cache.shards()] == ["a", "b"]
        assert all(tokens.ids[:1].tolist() == [1] for tokens in held)

    def test_a_budget_below_one_shard_is_told(self, new_cache: NewCache) -> None:
        """A shard larger than the budget raises ``ConfigurationError``, and the other shards stay."""
        cache = new_cache(budget=100_000)
        cache.put("a", large(1), {})
        with pytest.raises(ConfigurationError, match="100000"):
            cache.put("b", [*large(1), *large(2)], {})
        assert [shard.name for shard in cache.shards()] == ["a"]

    def test_derived_arrays_of_an_evicted_shard_are_of_the_next(self, new_cache: NewCache) -> None:
        """A shard that was evicted and put again derives the same arrays as before."""
        cache = new_cache(budget=_ROOM_FOR_TWO)
        shard = cache.put("a", large(1), {})
        before = cache.derive(shard, "lengths", lengths_of)["lengths"].tolist()
        for name in "bcd":
            cache.put(name, large(2), {})
        assert cache.missing(["a"]) == ["a"]
        assert cache.put("a", large(1), {}) == shard
        assert cache.derive(shard, "lengths", lengths_of)["lengths"].tolist() == before
