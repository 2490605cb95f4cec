"""Batches of the held-out documents, for evaluation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, final

import numpy as np

from holdfast.domain.data.exclusion import NO_EXCLUSION
from holdfast.domain.data.packing import place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.data.sample_order import unit_order
from holdfast.domain.data.supervision import Supervision
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.data.text_reader import TextReader
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.packing import Packing
    from holdfast.ports.token_source import Tokens, TokenSource


class SourcedTokens(NamedTuple):
    """Documents, and the number of the source of each, int64 (documents,), -1 for a document of no source.

    ``reference``, float64 (documents, 2), are the log-probabilities of pairs under the reference model, if known.
    ``text_bytes``, int64 (tokens,), are the bytes of the document's text that each token stands for, if known.
    """

    tokens: Tokens
    sources: NDArray[np.int64]
    reference: NDArray[np.float64] | None = None
    text_bytes: NDArray[np.int64] | None = None


class SourceNumbers(Protocol):
    """The sources of documents."""

    def __call__(self, reader: int, scores: Sequence[Mapping[str, float]]) -> NDArray[np.int64]:
        """Return the numbers of the sources, int64 (documents,), of documents of ``reader`` with these ``scores``."""
        ...


class TokenGroups(Protocol):
    """Groups of documents in some order: every held-out document, and possibly others."""

    def __iter__(self) -> Iterator[SourcedTokens]:
        """Yield the documents from the first on."""
        ...


def by_reader(reader: int, scores: Sequence[Mapping[str, float]]) -> NDArray[np.int64]:
    """Return the number of the reader as that of the source; the arguments are those of ``SourceNumbers``."""
    return np.full(len(scores), reader)


@final
class TextGroups(TokenGroups):
    """The documents of text sources that ``holdout`` holds, with the units of all sources in one shuffled order.

    Without ``counts_text`` nothing is known of the bytes of their texts.
    """

    def __init__(
        self,
        readers: Sequence[TextReader],
        holdout: Holdout,
        seed: int,
        source_numbers: SourceNumbers = by_reader,
        *,
        counts_text: bool = True,
    ) -> None:
        self._readers = [reader.counting_text() for reader in readers] if counts_text else readers
        self._holdout = holdout
        self._seed = seed
        self._source_numbers = source_numbers

    def __iter__(self) -> Iterator[SourcedTokens]:
        """Yield the documents from the first on."""
        readers = enumerate(self._readers)
        units = [(reader, place, unit) for place, reader in readers for unit in reader.source.units()]
        for number in unit_order(len(units), self._seed, 0).tolist():
            reader, place, unit = units[number]
            for group in reader.tokens(unit, wanted=self._holdout.holds):
                sources = self._source_numbers(place, group.scores)
                yield SourcedTokens(group.tokens, sources, text_bytes=group.text_bytes)


@final
class ShardGroups(TokenGroups):
    """All documents of a token source, shard by shard."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    def __iter__(self) -> Iterator[SourcedTokens]:
        """Yield the documents from the first on."""
        for shard in self._tokens.shards():
            tokens = self._tokens.open(shard)
            yield SourcedTokens(tokens, np.zeros(len(tokens.hashes), np.int64))


@final
class PairGroups(TokenGroups):
    """All preferences of the token caches that ``open_caches`` returns, with the shards of all in one shuffled order.

    ``reference`` returns their log-probabilities, None if they are not known.
    """

    def __init__(
        self,
        open_caches: Callable[[], Sequence[TokenSource]],
        reference: Callable[[], ReferenceColumn | None],
        seed: int,
    ) -> None:
        self._open_caches = open_caches
        self._reference = reference
        self._seed = seed

    def __iter__(self) -> Iterator[SourcedTokens]:
        """Yield the documents from the first on."""
        reference = self._reference()
        shards = [
            (number, cache, shard) for number, cache in enumerate(self._open_caches()) for shard in cache.shards()
        ]
        for place in unit_order(len(shards), self._seed, 0).tolist():
            number, cache, shard = shards[place]
            sources = np.full(shard.num_documents, number)
            yield SourcedTokens(
                cache.open(shard), sources, None if reference is None else reference.of(cache, shard)
            )  # fmt: skip


class _HeldOut(NamedTuple):
    """The ids of a document, its loss mask, the number of its source, and the log-probabilities of a pair (2,).

    ``text_bytes`` are those of each token, if known.
    """

    ids: NDArray[np.unsignedinteger]
    mask: NDArray[np.bool_] | None
    source: int
    reference: NDArray[np.float64] | None
    text_bytes: NDArray[np.int64] | None


@final
class HoldoutBatches:
    """Held-out documents as packed batches of ``rows``, up to ``max_tokens`` tokens; kept in memory.

    The set is a pure function of the data, the seed, the tokenizer and the ``excluded`` documents, which are left out,
    so evaluations of one run are comparable. ``sources`` are the names of the sources of a mixture of at least two.
    With ``holds_pairs`` the documents are preferences; those that are longer than a row are left out.
    """

    def __init__(
        self,
        groups: TokenGroups,
        holdout: Holdout,
        packing: Packing,
        *,
        rows: int,
        max_tokens: int,
        excluded: Exclusion = NO_EXCLUSION,
        sources: Sequence[str] = (),
        holds_pairs: bool = False,
    ) -> None:
        self.sources = sources if len(sources) > 1 else ()
        self._groups = groups
        self._holdout = holdout
        self._packing = packing
        self._rows = rows
        self._max_tokens = max_tokens
        self._excluded = excluded
        self._holds_pairs = holds_pairs
        self._is_cut = False
        self._is_too_long = False

    @property
    def is_empty(self) -> bool:
        """Return whether the settings hold out no document."""
        return self._holdout.fraction == 0.0

    @property
    def batches(self) -> Sequence[Batch]:
        """Return the batches; raises ``DataError`` if no document is held out."""
        return self._read[0]

    @cached_property
    def supervision(self) -> Supervision:
        """Return the numbers of tokens, targets and rows without one; raises as ``batches`` does."""
        return sum((Supervision.of_batch(batch, ()) for batch in self.batches), Supervision())

    @property
    def piece_sources(self) -> Sequence[NDArray[np.int64]]:
        """Return for each batch the place in ``sources`` of each piece, int64 (pieces,), -1 for no source."""
        return self._read[1]

    @property
    def text_bytes(self) -> Sequence[NDArray[np.int64] | None]:
        """Return for each batch the bytes of text that each token stands for, int64 (rows, length), None if unknown."""
        return self._read[2]

    @cached_property
    def _read(self) -> tuple[Sequence[Batch], Sequence[NDArray[np.int64]], Sequence[NDArray[np.int64] | None]]:
        held_out = list(self._documents())
        if not held_out:
            raise DataError(self._why_none())
        documents, masks, sources, references, sizes = zip(*held_out, strict=True)
        reference = None if references[0] is None else np.stack(references)
        places = place_rows(documents, self._packing, masks, holds_pairs=self._holds_pairs, reference=reference)
        sized = None if sizes[0] is None else place_rows(sizes, self._packing)
        index = places[0][2]
        ends = np.cumsum([len(document) for document in documents])
        of_pieces = np.array(sources)[np.searchsorted(ends, index.starts, side="right")]
        batches, piece_sources, text_bytes = [], [], []
        for first in range(0, len(places), self._rows):
            last = min(first + self._rows, len(places))
            batches.append(read_rows(places[first:last], self._packing.length))
            piece_sources.append(of_pieces[index.rows[first] : index.rows[last]])
            text_bytes.append(None if sized is None else read_rows(sized[first:last], self._packing.length).input_ids)
        return batches, piece_sources, text_bytes

    def _why_none(self) -> str:
        """Return the message that no document is there to evaluate on."""
        if self._is_too_long:
            return (
                f"every pair held out to evaluate on has more than {self._packing.length:,} tokens and is left out: "
                f"raise data.sequence_length, or data.holdout, now {self._holdout.fraction}"
            )
        if self._holdout.fraction >= 1:
            return "none of the documents holds any text to evaluate on: choose other data"
        if len(self._excluded):
            return (
                "no document to evaluate on is left that is held out and not excluded: raise data.holdout, now "
                f"{self._holdout.fraction}, or shorten data.exclude"
            )
        return f"no document was held out to evaluate on: raise data.holdout, now {self._holdout.fraction}"

    @property
    def is_cut(self) -> bool:
        """Return whether documents were left out because there were more than ``max_tokens`` tokens."""
        return bool(self.batches) and self._is_cut

    def _documents(self) -> Iterator[_HeldOut]:
        """Yield the documents that fit."""
        room = self._max_tokens
        for tokens, sources, reference, text_bytes in self._groups:
            chosen = self._holdout.holds(tokens.hashes) & ~self._excluded.holds(tokens.hashes)
            for number in np.flatnonzero(chosen).tolist():
                if room == 0:
                    self._is_cut = True
                    return
                first, last = tokens.offsets[number : number + 2].tolist()
                if self._holds_pairs and last - first > min(room, self._packing.length):
                    self._is_cut |= last - first > room
                    self._is_too_long |= last - first > self._packing.length
                    continue
                part = slice(first, min(last, first + room))
                mask = None if tokens.loss_mask is None else tokens.loss_mask[part]
                values = None if reference is None else reference[number]
                sizes = None if text_bytes is None else text_bytes[part]
                yield _HeldOut(tokens.ids[part], mask, int(sources[number]), values, sizes)
                room -= last - first
                if room < 0:
                    self._is_cut = True
                    return
