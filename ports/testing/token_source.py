"""The contract of ``TokenSource``."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from holdfast.domain.errors import DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.ports.token_source import TokenSource

END_OF_TEXT = 999
"""What ends each document of these tests; a vocabulary has ids from 0 to this."""

Documents = list[list[int]]

DOCUMENTS: Documents = [[*range(length), END_OF_TEXT] for length in (3, 1, 200, 5, 0, 40, 3, 77)]


def lengths_of(tokens: Tokens) -> Mapping[str, NDArray[np.int64]]:
    """Return int64 arrays to derive: ``lengths`` (num_documents,), tokens per document, and ``none`` (0,)."""
    return {"lengths": np.diff(tokens.offsets), "none": np.zeros(0, np.int64)}


def documents_in(tokens: Tokens) -> Documents:
    """Return the documents as lists."""
    pairs = zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True)
    return [tokens.ids[start:end].tolist() for start, end in pairs]


def all_documents(source: TokenSource) -> Documents:
    """Return the documents of all shards, in their order."""
    return [document for shard in source.shards() for document in documents_in(source.open(shard))]


class TokenSourceContract:
    """The contract of every ``TokenSource``; derive and override ``new_source``.

    If the stored data outlive the object, override ``reopen`` and ``destroy`` too.
    """

    @pytest.fixture
    def new_source(self) -> Callable[[Documents], TokenSource]:
        """Return a function that creates a new source of given documents, in at least two shards, at each call."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self) -> Callable[[TokenSource], TokenSource]:
        """Return a function that opens the data of a source again, like another process."""
        return lambda source: source

    @pytest.fixture
    def destroy(self) -> Callable[[TokenSource], object]:
        """Return a function that deletes the data of a source."""
        return lambda source: source

    @pytest.fixture
    def source(self, new_source: Callable[[Documents], TokenSource]) -> TokenSource:
        """Return a source of ``DOCUMENTS``."""
        return new_source(DOCUMENTS)

    def test_shards_are_sorted_by_name(self, source: TokenSource, reopen: Callable[[TokenSource], TokenSource]) -> None:
        """The shards are sorted by name each time, and their names are unique."""
        shards = list(source.shards())
        names = [shard.name for shard in shards]
        assert len(shards) > 1
        assert names == sorted(set(names))
        assert list(source.shards()) == shards == list(reopen(source).shards())

    def test_the_shards_hold_the_documents(self, source: TokenSource) -> None:
        """The shards contain each document once, in order, including its end-of-text id."""
        assert all_documents(source) == DOCUMENTS

    def test_tokens_are_as_the_shard_tells(self, source: TokenSource) -> None:
        """Ids are uint16 or uint32, offsets int64 and hashes uint64; their numbers agree with the shard's."""
        for shard in source.shards():
            tokens = source.open(shard)
            assert tokens.ids.dtype in {np.dtype(np.uint16), np.dtype(np.uint32)}
            assert (tokens.offsets.dtype, tokens.hashes.dtype) == (np.dtype(np.int64), np.dtype(np.uint64))
            assert (len(tokens.ids), len(tokens.hashes)) == (shard.num_tokens, shard.num_documents)
            assert (tokens.offsets[0], tokens.offsets[-1]) == (0, shard.num_tokens)
            assert len(tokens.offsets) == shard.num_documents + 1

    def test_hashes_tell_documents_apart(self, source: TokenSource) -> None:
        """Equal documents have equal hashes, and different documents have different hashes."""
        hashes = [int(each) for shard in source.shards() for each in source.open(shard).hashes]
        by_document: dict[tuple[int, ...], set[int]] = {}
        for document, value in zip(DOCUMENTS, hashes, strict=True):
            by_document.setdefault(tuple(document), set()).add(value)
        assert all(len(values) == 1 for values in by_document.values())
        assert len(set(hashes)) == len(by_document)

    def test_several_threads_open(self, source: TokenSource) -> None:
        """Several threads that open shards repeatedly get the same tokens as one thread."""
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda _: all_documents(source), range(40))
            assert all(documents == DOCUMENTS for documents in found)

    def test_open_tokens_outlive_the_source(
        self,
        new_source: Callable[[Documents], TokenSource],
        destroy: Callable[[TokenSource], object],
    ) -> None:
        """Results of ``open`` and ``derive`` stay readable after the source and its data are deleted."""
        source = new_source(DOCUMENTS)
        opened = [source.open(shard) for shard in source.shards()]
        derived = [source.derive(shard, "lengths", lengths_of) for shard in source.shards()]
        destroy(source)
        del source
        gc.collect()
        assert [document for tokens in opened for document in documents_in(tokens)] == DOCUMENTS
        lengths = [length for arrays in derived for length in arrays["lengths"].tolist()]
        assert lengths == [len(document) for document in DOCUMENTS]

    def test_a_shard_that_is_not_there_is_named(self, source: TokenSource) -> None:
        """Opening a shard that the source does not have raises ``DataError`` with its name."""
        with pytest.raises(DataError, match="nobody knows this one"):
            source.open(TokenShard("nobody knows this one", 1, 1, "f"))

    def test_what_is_derived_is_what_is_made(self, source: TokenSource) -> None:
        """``derive`` returns the arrays of ``make`` for the shard by name, including empty arrays."""
        for shard in source.shards():
            expected = lengths_of(source.open(shard))
            for _ in range(2):
                derived = source.derive(shard, "lengths", lengths_of)
                assert derived.keys() == expected.keys()
                assert all(np.array_equal(derived[name], expected[name]) for name in expected)
                assert all(derived[name].dtype == np.int64 for name in expected)

    def test_derived_arrays_are_kept(self, source: TokenSource, reopen: Callable[[TokenSource], TokenSource]) -> None:
        """A second call with the same key, also after the source is opened again, does not call ``make``."""
        shard = source.shards()[0]
        first = source.derive(shard, "lengths", lengths_of)["lengths"].tolist()
        for again in (source, reopen(source)):
            derived = again.derive(shard, "lengths", lambda _: {"lengths": np.full(3, -1, np.int64)})
            assert derived["lengths"].tolist() == first

    @pytest.mark.parametrize("key", ["other", "a/../b", "x" * 1000, "", "Ü\n\0"])
    def test_keys_are_told_apart(self, source: TokenSource, key: str) -> None:
        """Arrays derived with a key of any characters are not returned for another key or shard."""
        shards = source.shards()
        source.derive(shards[0], "lengths", lengths_of)
        for number, shard in enumerate(shards):
            made = source.derive(shard, key, lambda _, number=number: {"a": np.array([number])})  # type: ignore[misc]
            assert made["a"].tolist() == [number]
        assert source.derive(shards[0], key, lengths_of)["a"].tolist() == [0]

    def test_several_threads_derive(self, source: TokenSource) -> None:
        """Several threads that derive the same arrays at the same time each get complete arrays."""
        shard = source.shards()[0]
        expected = lengths_of(source.open(shard))["lengths"].tolist()
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda _: source.derive(shard, "lengths", lengths_of)["lengths"].tolist(), range(16))
            assert list(found) == [expected] * 16

    def test_the_fingerprint_identifies_the_documents(
        self,
        source: TokenSource,
        new_source: Callable[[Documents], TokenSource],
        reopen: Callable[[TokenSource], TokenSource],
    ) -> None:
        """The fingerprint is equal for each reading, and different for other documents or another order."""
        changed = [*DOCUMENTS[:-1], [*DOCUMENTS[-1][:-2], 7, END_OF_TEXT]]
        others = [new_source(documents).fingerprint() for documents in (changed, DOCUMENTS[::-1])]
        assert source.fingerprint() == source.fingerprint() == reopen(source).fingerprint()
        assert len({source.fingerprint(), *others}) == 3

    def test_shards_have_fingerprints_of_their_own(self, source: TokenSource) -> None:
        """Shards with other documents have other fingerprints."""
        shards: Sequence[TokenShard] = source.shards()
        assert len({shard.fingerprint for shard in shards}) == len(shards)
