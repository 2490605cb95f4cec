"""Reads and tokenizes the documents of a data source, many at a time."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from typing import TYPE_CHECKING, Protocol, TypeVar, final

import numpy as np

from holdfast.application.data.record_pipeline import LeftOutDocument, RecordPipeline, Warned
from holdfast.application.data.rejected_records import ReadStatistics, reason_of
from holdfast.domain.data.holdout import hash_of
from holdfast.domain.data.loss_mask import join_masks
from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Document, Rejected
from holdfast.ports.document_encoder import CountsText
from holdfast.ports.token_source import Tokens
from holdfast.ports.tokenizer import Encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.record_pipeline import Used
    from holdfast.application.data.rejected_records import Profiling, Record, RejectedRecords
    from holdfast.ports.data_source import DataSource, Unit
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.transform import Dropped

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

_Item = TypeVar("_Item")

_GROUP_CHARACTERS = 1 << 21  # enough that the tokenizer's threads are busy, few enough to stay small


class Limit(Protocol):
    """A limit on the share of records that are left out."""

    def add(self, read: int, drops: Mapping[str, int]) -> None:
        """Count records; raises ``DataError`` if too many are left out. Thread-safe."""
        ...

    def finish(self) -> None:
        """Raise ``DataError`` if too many of all records are left out."""
        ...


@dataclass(frozen=True, eq=False)
class TokenizedGroup:
    """Some documents of a unit as flat token ``ids`` (tokens,), as an encoder made them.

    Document ``i`` is ``ids[offsets[i] : offsets[i + 1]]``, and reading from ``ends[i]`` continues after it. ``offsets``
    is int64 (documents + 1,); ``hashes`` is uint64 (documents,), or None if they were not requested. ``starts`` are the
    positions of the documents in the unit, and ``scores`` the numbers that transforms gave each of them; documents of
    the same record are neighbors, with the same hash, start, end and scores. ``loss_mask``,
    bool (tokens,), says which tokens are trained on, None means all of them. ``text_bytes``, int64 (tokens,), are the
    bytes of text that each token stands for, None if they were not requested or are not known.
    """

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64] | None
    ends: Sequence[int]
    starts: Sequence[int] = ()
    scores: Sequence[Mapping[str, float]] = ()
    loss_mask: NDArray[np.bool_] | None = None
    text_bytes: NDArray[np.int64] | None = None

    @property
    def tokens(self) -> Tokens:
        """Return the documents with their hashes."""
        assert self.hashes is not None, "no hashes were asked for"
        return Tokens(self.ids, self.offsets, self.hashes, self.loss_mask)


@final
class TextReader:
    """Reads the usable documents of a source, checked and changed by a ``pipeline``, and encodes them by ``encoder``.

    A group ends with the document that brings it to ``group_characters``. Documents of ``left_out`` are not tokenized.
    ``limit`` gets the numbers of records that are read, and of those that are left out, by reason.
    ``profile`` gets all documents that are tokenized for a call without ``statistics``.
    """

    def __init__(
        self,
        source: DataSource,
        encoder: DocumentEncoder,
        rejections: RejectedRecords,
        pipeline: RecordPipeline | None = None,
        *,
        left_out: LeftOut | None = None,
        limit: Limit | None = None,
        profile: Profiling | None = None,
        group_characters: int = _GROUP_CHARACTERS,
    ) -> None:
        self.source = source
        self._encoder = encoder
        self._rejections = rejections
        self._pipeline = pipeline or RecordPipeline()
        self.left_out = left_out
        self.limit = limit
        self._profile = profile
        self._group_characters = group_characters
        self._counts_text = False

    @property
    def fingerprints(self) -> list[str]:
        """Return the fingerprints of all that makes the tokens: the source, the encoder and the transforms."""
        left_out = [] if self.left_out is None else [self.left_out.fingerprint()]
        return [self.source.fingerprint(), self._encoder.fingerprint(), *self._pipeline.fingerprints, *left_out]

    def tell_lacking_fields(self) -> None:
        """Report fields with rules that none of the records read so far has."""
        if self._pipeline.watch is not None:
            self._pipeline.watch.finish()

    def texts(
        self,
        unit: Unit,
        statistics: ReadStatistics | None = None,
        rejected: Callable[[Record], object] = lambda _: None,
    ) -> Iterator[tuple[Document, str]]:
        """Yield the documents of ``unit`` that are used, each with its text; ``rejected`` gets the others.

        Raises ``DataError`` for a bad record unless the policy is to skip it.
        """
        counts = statistics or ReadStatistics()
        for document, record in self._documents(unit, None, rejected, is_kept=True, statistics=counts):
            if self.left_out is None or not self.left_out.mask(unit, [document.start])[0]:
                yield document, record.text

    def unobserved(self) -> TextReader:
        """Return a reader of the same documents that reports neither rejections nor figures."""
        other = copy(self)
        other._rejections = self._rejections.unwritten()  # noqa: SLF001  of its own kind
        other._profile = other.limit = None  # noqa: SLF001
        return other

    def leaving_out(self, left_out: LeftOut) -> TextReader:
        """Return a reader of the same documents without those of ``left_out``, which replaces an earlier one."""
        other = copy(self)
        other.left_out = left_out
        return other

    def counting_text(self) -> TextReader:
        """Return a reader of the same documents whose groups have ``text_bytes``, if the encoder can tell them."""
        other = copy(self)
        other._counts_text = isinstance(self._encoder, CountsText)  # noqa: SLF001  of its own kind
        return other

    def confirming(self) -> TextReader:
        """Return a reader of the same documents for a result that is stored, as ``DataSource.confirming``."""
        other = copy(self)
        other.source = self.source.confirming()
        return other

    def tokens(
        self,
        unit: Unit,
        start: int | None = None,
        *,
        wanted: Wanted | None = None,
        rejected: Callable[[Record], object] | None = None,
        is_kept: bool = False,
        is_hashed: bool = True,
        statistics: ReadStatistics | None = None,
    ) -> Iterator[TokenizedGroup]:
        """Yield the documents of ``unit`` from ``start`` on that have text, encoded.

        Documents that ``wanted`` refuses by their hashes are read, but not tokenized; None selects all documents.
        Raises ``DataError`` for a bad record, unless the policy is to skip it: then it goes to ``rejected``, or if that
        is None to the list of the run. If the tokens are kept (``is_kept``), a source that does not answer always
        raises ``DataError``. Hashing takes half as long as reading, so it is left out if neither ``wanted`` nor the
        caller (``is_hashed``) needs it. ``statistics`` count the records that are read and left out.
        """
        record, counts = rejected or self._rejections.record, statistics or ReadStatistics(self._profile)
        is_hashed = is_hashed or counts.profile is not None
        documents = self._documents(unit, start, record, is_kept=is_kept, statistics=counts)
        groups = _groups(documents, self._group_characters, _size_of)
        encode = partial(self._encode_wanted, unit, wanted, record, counts, is_hashed)
        # by map, so that no text is held while a group waits: many units may be read at the same time
        encoded = chain.from_iterable(map(encode, groups))
        return encoded if self.limit is None else _limited(encoded, counts, self.limit)

    def _encode_wanted(
        self,
        unit: Unit,
        wanted: Wanted | None,
        rejected: Callable[[Record], object],
        statistics: ReadStatistics,
        is_hashed: bool,  # noqa: FBT001  of a partial
        group: Sequence[Used],
    ) -> Iterable[TokenizedGroup]:
        if self.left_out is not None:
            group = self._without(self.left_out, unit, group, rejected, statistics)
        if wanted is not None:
            group = list(compress(group, wanted(_hashes(group)).tolist()))
        if not group:
            return ()
        finished = partial(self._finished, statistics, is_hashed)
        try:
            encoded = self._encoder.encode([record for _, record in group])
        except DataError:
            alone = self._encoded_alone(unit, group, rejected, statistics)
            return map(finished, map(_joined, self._grouped(alone)))
        return [finished((group, encoded))]

    def _finished(
        self,
        statistics: ReadStatistics,
        is_hashed: bool,  # noqa: FBT001  of a partial
        part: tuple[Sequence[Used], Encoded],
    ) -> TokenizedGroup:
        used, encoded = part
        group = _group_of(used, encoded, statistics, is_hashed=is_hashed)
        if not self._counts_text or not isinstance(self._encoder, CountsText):
            return group
        return replace(group, text_bytes=self._encoder.text_bytes([record for _, record in used], encoded))

    def _without(
        self,
        left_out: LeftOut,
        unit: Unit,
        group: Sequence[Used],
        rejected: Callable[[Record], object],
        statistics: ReadStatistics,
    ) -> Sequence[Used]:
        mask = left_out.mask(unit, [document.start for document, _ in group]).tolist()
        for document, _ in compress(group, mask):
            self._drop(unit, LeftOutDocument(document, left_out.verdict(unit, document.start)), rejected, statistics)
        return [each for each, is_left_out in zip(group, mask, strict=True) if not is_left_out]

    def _documents(
        self,
        unit: Unit,
        start: int | None,
        rejected: Callable[[Record], object],
        *,
        is_kept: bool,
        statistics: ReadStatistics,
    ) -> Iterator[Used]:
        for item in self._pipeline.apply(unit, self.source.read(unit, start)):
            if isinstance(item, Warned):
                where = f"{unit.name}, the document at position {item.document.start}"
                self._rejections.check_used(item.reasons, where)
                statistics.warn(item.reasons)
                if not is_kept:
                    self._rejections.say(item.reasons)
                continue
            statistics.read()
            if isinstance(item, LeftOutDocument):
                self._drop(unit, item, rejected, statistics)
            elif isinstance(item, Rejected):
                if is_kept and item.is_passing:
                    msg = f"{item.reason}; the tokens made so far are kept: run the same command again once it answers"
                    raise DataError(msg)
                rejection = self._rejections.reject(unit, item, self.source.tell)
                statistics.drop(reason_of(rejection))
                rejected(rejection)
            else:
                yield item

    def _drop(
        self, unit: Unit, verdict: LeftOutDocument, rejected: Callable[[Record], object], statistics: ReadStatistics
    ) -> None:
        """Count a document that a rule left out, and write it down if the rule gave details."""
        dropped = verdict.dropped
        if dropped.ends_run:
            raise self._rejections.error_of(unit, verdict.document.start, dropped)
        statistics.drop(dropped.reason)
        if dropped.detail:
            rejected(self._rejections.leave_out(unit, verdict.document.start, dropped))

    def _encoded_alone(
        self,
        unit: Unit,
        group: Sequence[Used],
        rejected: Callable[[Record], object],
        statistics: ReadStatistics,
    ) -> Iterator[tuple[Used, Encoded]]:
        """Yield the documents of ``group`` that the encoder accepts, each encoded by itself."""
        rest = list(reversed(group))
        del group  # what is yielded is no longer held here
        while rest:
            used = rest.pop()
            try:
                encoded = self._encoder.encode([used.record])
            except DataError as error:
                found = self._rejections.reject(unit, _not_encoded(unit, used.document, error))
                statistics.drop(reason_of(found))
                rejected(found)
            else:
                yield used, encoded

    def _grouped(self, documents: Iterable[tuple[Used, Encoded]]) -> Iterator[Sequence[tuple[Used, Encoded]]]:
        return _groups(documents, self._group_characters, lambda each: len(each[0].record.text))


def _group_of(
    group: Sequence[Used], encoded: Encoded, statistics: ReadStatistics, *, is_hashed: bool
) -> TokenizedGroup:
    hashes = _hashes(group) if is_hashed else None
    if statistics.profile is not None and hashes is not None:
        offsets = encoded.offsets
        if encoded.counts is not None:
            offsets = offsets[np.append(0, np.cumsum(encoded.counts))]
        statistics.profile.add([record.text for _, record in group], encoded.ids, offsets, hashes)
    if encoded.counts is not None:
        group = [used for used, count in zip(group, encoded.counts.tolist(), strict=True) for _ in range(count)]
        hashes = None if hashes is None else np.repeat(hashes, encoded.counts)
    return TokenizedGroup(
        encoded.ids,
        encoded.offsets,
        hashes,
        ends=[document.end for document, _ in group],
        starts=[document.start for document, _ in group],
        scores=[record.scores for _, record in group],
        loss_mask=encoded.loss_mask,
    )


def _joined(part: Sequence[tuple[Used, Encoded]]) -> tuple[Sequence[Used], Encoded]:
    """Return the documents of ``part``, each encoded alone, as one batch."""
    ids = np.concatenate([encoded.ids for _, encoded in part])
    mask = join_masks([encoded.loss_mask for _, encoded in part], [len(encoded.ids) for _, encoded in part])
    lengths = np.concatenate([np.diff(encoded.offsets) for _, encoded in part])
    counts = np.array([len(encoded.offsets) - 1 for _, encoded in part], np.int64)
    return [used for used, _ in part], Encoded(ids, np.append(0, np.cumsum(lengths)), mask, counts)


def _limited(groups: Iterable[TokenizedGroup], statistics: ReadStatistics, limit: Limit) -> Iterator[TokenizedGroup]:
    """Yield ``groups``, and report to ``limit`` what was read for them."""
    records, drops = statistics.records, Counter(statistics.drops)
    for group in chain(groups, [None]):
        limit.add(statistics.records - records, Counter(statistics.drops) - drops)
        records, drops = statistics.records, Counter(statistics.drops)
        if group is not None:
            yield group


def _hashes(group: Sequence[Used]) -> NDArray[np.uint64]:
    # hashes of the text before transforms, so that transforms move no document into or out of the hold-out
    return np.array([hash_of(document.text) for document, _ in group], np.uint64)


def _not_encoded(unit: Unit, document: Document, error: DataError) -> Rejected:
    reason = f"{unit.name}: the document at position {document.start} {error}"
    return Rejected(reason, document.start, document.end)


def _size_of(used: Used) -> int:
    return len(used.record.text)


def _groups(
    documents: Iterable[_Item], group_characters: int, size_of: Callable[[_Item], int]
) -> Iterator[Sequence[_Item]]:
    group: list[_Item] = []
    characters = 0
    try:
        for document in documents:
            group.append(document)
            characters += size_of(document)
            if characters >= group_characters:
                del document
                yield _emptied(group)
                characters = 0
    except DataError:
        if group:
            yield _emptied(group)  # an error comes where its document would be
        raise
    if group:
        yield _emptied(group)


def _emptied(group: list[_Item]) -> Sequence[_Item]:
    documents = group[:]
    group.clear()
    return documents


class LeftOut(Protocol):
    """Documents that are left out by their position in the source, such as duplicates."""

    def fingerprint(self) -> str:
        """Return a short text that identifies which documents are left out."""
        ...

    def mask(self, unit: Unit, positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether the document at each of ``positions`` in ``unit`` is left out, bool (positions,)."""
        ...

    def verdict(self, unit: Unit, position: int) -> Dropped:
        """Return the reason why the document at ``position`` is left out."""
        ...


@final
class LeftOutByAny:
    """The documents that any of ``parts`` leaves out, for the reason of the first one."""

    def __init__(self, parts: Sequence[LeftOut]) -> None:
        self._parts = parts

    def fingerprint(self) -> str:
        """Return the fingerprints of the parts."""
        return " ".join(part.fingerprint() for part in self._parts)

    def mask(self, unit: Unit, positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether the document at each of ``positions`` in ``unit`` is left out, bool (positions,)."""
        masks = [part.mask(unit, positions) for part in self._parts]
        mask: NDArray[np.bool_] = np.logical_or.reduce(masks)
        return mask

    def verdict(self, unit: Unit, position: int) -> Dropped:
        """Return the reason why the document at ``position`` is left out."""
        return next(part.verdict(unit, position) for part in self._parts if part.mask(unit, [position])[0])
