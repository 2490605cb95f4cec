"""Reads and tokenizes the documents of a data source, many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.domain.data.holdout import hash_of
from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Document, Rejected
from holdfast.ports.token_source import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.rejected_records import Record, RejectedRecords
    from holdfast.ports.data_source import DataSource, Unit
    from holdfast.ports.tokenizer import Tokenizer
    from holdfast.ports.transform import Transform

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

_GROUP_CHARACTERS = 1 << 21  # enough that the tokenizer's threads are busy, few enough to stay small
_SHOWN_CHARACTERS = 300  # of a transform's error, which may contain the document


@dataclass(frozen=True, eq=False)
class TokenizedGroup:
    """Some documents of a unit as flat token ``ids`` (tokens,), each followed by end-of-text.

    Document ``i`` is ``ids[offsets[i] : offsets[i + 1]]``, and reading from ``ends[i]`` continues after it. ``offsets``
    is int64 (documents + 1,); ``hashes`` is uint64 (documents,), or None if they were not requested.
    """

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64] | None
    ends: Sequence[int]

    @property
    def tokens(self) -> Tokens:
        """Return the documents with their hashes."""
        assert self.hashes is not None, "no hashes were asked for"
        return Tokens(self.ids, self.offsets, self.hashes)


@final
class TextReader:
    """Reads documents of a source: those that can be used, as the ``transforms`` leave them."""

    def __init__(
        self,
        source: DataSource,
        tokenizer: Tokenizer,
        rejections: RejectedRecords,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._rejections = rejections
        self._transforms = transforms

    @property
    def fingerprints(self) -> list[str]:
        """Return the fingerprints of source, tokenizer and transforms, which identify the tokens."""
        transforms = [transform.fingerprint() for transform in self._transforms]
        return [self.source.fingerprint(), self._tokenizer.fingerprint(), *transforms]

    def tokens(
        self,
        unit: Unit,
        start: int | None = None,
        *,
        wanted: Wanted | None = None,
        rejected: Callable[[Record], object] | None = None,
        is_kept: bool = False,
        is_hashed: bool = True,
    ) -> Iterator[TokenizedGroup]:
        """Yield the documents of ``unit`` from ``start`` on that have text, each followed by end-of-text.

        Documents that ``wanted`` refuses by their hashes are read, but not tokenized; None wants all.
        A bad record raises ``DataError`` or, where that is the policy, goes to ``rejected``, else to the run's list.
        Where the tokens are kept (``is_kept``), a place that does not answer raises it in any case. Hashing takes as
        long as half the reading, so it is left out where neither ``wanted`` nor the caller (``is_hashed``) needs it.
        """
        record = rejected or self._rejections.record
        groups = _groups(self._documents(unit, start, record, is_kept=is_kept))
        encode = partial(self._encode_wanted, unit, wanted, record, is_hashed)
        # by map, so that no text is held while it waits: many units may be read at the same time
        return chain.from_iterable(map(encode, groups))

    def _encode_wanted(
        self,
        unit: Unit,
        wanted: Wanted | None,
        rejected: Callable[[Record], object],
        is_hashed: bool,  # noqa: FBT001  of a partial
        group: Sequence[tuple[Document, str]],
    ) -> Iterable[TokenizedGroup]:
        if wanted is not None:
            group = list(compress(group, wanted(_hashes(group)).tolist()))
        if not group:
            return ()
        try:
            return [self._encode(group, is_hashed=is_hashed)]
        except DataError:  # seldom enough that looking for half of a surrogate pair before would not pay
            parts = _groups(self._readable(unit, group, rejected))
            return (self._encode(part, is_hashed=is_hashed) for part in parts)

    def _documents(
        self, unit: Unit, start: int | None, rejected: Callable[[Record], object], *, is_kept: bool
    ) -> Iterator[tuple[Document, str]]:
        for item in self.source.read(unit, start):
            used = self._transformed(unit, item) if isinstance(item, Document) else item
            if isinstance(used, Rejected):
                if is_kept and used.is_passing:
                    msg = f"{used.reason}; the tokens made so far are kept: run the same command again once it answers"
                    raise DataError(msg)
                rejected(self._rejections.reject(unit, used, self.source.tell))
            elif used:
                yield used

    def _readable(
        self, unit: Unit, group: Sequence[tuple[Document, str]], rejected: Callable[[Record], object]
    ) -> Iterator[tuple[Document, str]]:
        for document, text in group:
            try:
                text.encode()
            except UnicodeEncodeError:
                rejected(self._rejections.reject(unit, _no_unicode(unit, document)))
            else:
                yield document, text

    def _transformed(self, unit: Unit, document: Document) -> tuple[Document, str] | Rejected | None:
        text = document.text
        for number, transform in enumerate(self._transforms):
            try:
                changed: object = transform(text)
            except MemoryError:
                raise  # the machine's failure, not the document's
            except Exception as error:  # noqa: BLE001  a transform is anyone's code
                return _failed(unit, document, number, transform, f"{type(error).__name__}: {error}")
            if not isinstance(changed, str | None):
                return _failed(unit, document, number, transform, f"it gave {type(changed).__name__} instead of text")
            if not changed:
                return None
            text = changed
        return (document, text) if text else None

    def _encode(self, group: Sequence[tuple[Document, str]], *, is_hashed: bool) -> TokenizedGroup:
        encoded = self._tokenizer.encode([text for _, text in group])
        offsets = encoded.offsets + np.arange(len(group) + 1)
        ids = np.full(offsets[-1], self._tokenizer.end_of_text, encoded.ids.dtype)
        for number, (first, last) in enumerate(pairwise(encoded.offsets.tolist())):
            ids[first + number : last + number] = encoded.ids[first:last]
        ends = [document.end for document, _ in group]
        return TokenizedGroup(ids, offsets, _hashes(group) if is_hashed else None, ends)


def _hashes(group: Sequence[tuple[Document, str]]) -> NDArray[np.uint64]:
    # of the text before transforms, so that these move no document into or out of the hold-out
    return np.array([hash_of(document.text) for document, _ in group], np.uint64)


def _no_unicode(unit: Unit, document: Document) -> Rejected:
    reason = (
        f"{unit.name}: the document at position {document.start} holds half of a surrogate pair, which is no "
        "Unicode text: repair it"
    )
    return Rejected(reason, document.start, document.end)


def _failed(unit: Unit, document: Document, number: int, transform: Transform, why: str) -> Rejected:
    name = f"data.transforms[{number}], {type(transform).__name__},"
    why = " ".join(why[:_SHOWN_CHARACTERS].split())
    reason = f"{unit.name}: {name} failed on the document at position {document.start}, repair one of them: {why}"
    return Rejected(reason, document.start, document.end)


def _groups(documents: Iterable[tuple[Document, str]]) -> Iterator[Sequence[tuple[Document, str]]]:
    group: list[tuple[Document, str]] = []
    characters = 0
    try:
        for document in documents:
            group.append(document)
            characters += len(document[1])
            if characters >= _GROUP_CHARACTERS:
                del document
                yield _emptied(group)
                characters = 0
    except DataError:
        if group:
            yield _emptied(group)  # an error comes where its document would be
        raise
    if group:
        yield _emptied(group)


def _emptied(group: list[tuple[Document, str]]) -> Sequence[tuple[Document, str]]:
    documents = group[:]
    group.clear()
    return documents
