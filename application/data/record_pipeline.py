"""Applies transforms to the documents of a unit, many at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, final

from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Document, Rejected, Unit
from holdfast.ports.transform import Dropped, Record, RecordTransform, Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


AnyTransform = Transform | RecordTransform

_NO_UNIT = Unit("", 0, "")
_BATCH_CHARACTERS = 1 << 21  # as many as are tokenized together, so that a lane that waits holds few documents
_BATCH_DOCUMENTS = 1024
_SHOWN_CHARACTERS = 300  # of a transform's error, which may contain the document


@dataclass(frozen=True, slots=True)
class LeftOutDocument:
    """A document that a transform left out."""

    document: Document
    dropped: Dropped


@dataclass(frozen=True, slots=True)
class Warned:
    """A document that is used, although a transform found it doubtful, for ``reasons``."""

    document: Document
    reasons: tuple[str, ...]


_NO_FIELDS: Mapping[str, object] = MappingProxyType({})


class Used(NamedTuple):
    """A document that is used, and the record to train on, which transforms may have changed."""

    document: Document
    record: Record


@final
class FieldWatch:
    """Looks for fields ``names`` that have rules in all records that are read, and tells ``report`` which it lacks.

    It does so once, after ``minimum`` records or when ``finish`` is called. Thread-safe.
    """

    def __init__(
        self, names: Sequence[str], report: Callable[[str], object] = lambda _: None, *, minimum: int = 1000
    ) -> None:
        self._lacking = set(names)
        self._report = report
        self._minimum = minimum
        self._read = 0
        self._has_told = False
        self._lock = Lock()

    def add(self, documents: Sequence[Document]) -> None:
        """Look at ``documents``."""
        with self._lock:
            self._read += len(documents)
            for document in documents:
                if not self._lacking:
                    return
                self._lacking.difference_update(document.fields or ())
            is_time = self._read >= self._minimum
        if is_time:
            self.finish()

    def finish(self) -> None:
        """Report the fields that no record has had so far, unless it was done before."""
        with self._lock:
            sentence = None if self._has_told else self.sentence()
            self._has_told = self._has_told or sentence is not None
        if sentence is not None:
            self._report(sentence)

    def sentence(self) -> str | None:
        """Return which fields none of the records so far has had, None if there are none."""
        if not self._lacking or not self._read:
            return None
        names = ", ".join(map(repr, sorted(self._lacking)))
        return (
            f"data.validation.fields has rules for {names}, which no record of the {self._read:,} read so far has: "
            "correct the name"
        )


@final
class RecordPipeline:
    """Applies ``validation`` and then ``transforms``, in order; those of texts and those of records may be mixed.

    A batch ends with the document that brings it to ``batch_characters``. ``watch`` sees the documents. Documents
    without text, which the source gives if rules for the text are to see them, go no further than ``validation``.
    """

    def __init__(
        self,
        transforms: Sequence[AnyTransform] = (),
        validation: RecordTransform | None = None,
        *,
        watch: FieldWatch | None = None,
        batch_characters: int = _BATCH_CHARACTERS,
    ) -> None:
        self.watch = watch
        before = [] if validation is None else [validation]
        self._transforms: Sequence[AnyTransform] = [*before, *transforms]
        numbered = [f"data.transforms[{number}]" for number in range(len(transforms))]
        self._batch_characters = batch_characters
        self._names = [*("data.validation" for _ in before), *numbered]

    @property
    def fingerprints(self) -> list[str]:
        """Return the fingerprints of the transforms, in order."""
        return [transform.fingerprint() for transform in self._transforms]

    def apply(
        self, unit: Unit, items: Iterable[Document | Rejected]
    ) -> Iterator[Used | Warned | LeftOutDocument | Rejected]:
        """Yield the result for each of ``items``, in their order; documents without text yield nothing.

        A document on which a transform fails is yielded as ``Rejected``, and a warning precedes its document. Documents
        are read ahead in small batches.
        """
        if not self._transforms:
            for item in items:
                if isinstance(item, Rejected):
                    yield item
                elif item.text:
                    if item.warnings:
                        yield Warned(item, item.warnings)
                    yield Used(item, Record(item.text, item.fields or _NO_FIELDS))
            return
        for batch, end in _batches(items, self._batch_characters):
            yield from self._apply(unit, batch)
            if end is not None:
                yield end

    def text_of(self, document: Document) -> str | None:
        """Return the text of ``document`` after all transforms, None if it is left out or a transform fails."""
        results = self.apply(_NO_UNIT, [document])
        return next((each.record.text for each in results if isinstance(each, Used)), None)

    def _apply(self, unit: Unit, documents: list[Document]) -> Iterator[Used | Warned | LeftOutDocument | Rejected]:
        if self.watch is not None:
            self.watch.add(documents)
        is_validated = self._names[0] == "data.validation"
        results: list[Record | Dropped | Rejected | None] = [
            Record(document.text, document.fields or _NO_FIELDS, warnings=document.warnings)
            if document.text or is_validated
            else None
            for document in documents
        ]
        for number, transform in enumerate(self._transforms):
            alive = [place for place, result in enumerate(results) if isinstance(result, Record)]
            records = [results[place] for place in alive]
            step = self._texts if isinstance(transform, Transform) else self._records
            changed = step(unit, number, [documents[place] for place in alive], records)  # type: ignore[arg-type]
            for place, result in zip(alive, changed, strict=True):
                is_blank = isinstance(result, Record) and not documents[place].text
                results[place] = None if is_blank else result
        documents.reverse()
        results.reverse()
        while documents:  # from the end of reversed lists, so that no document is held after it was yielded
            document, result = documents.pop(), results.pop()
            if isinstance(result, Record):
                if result.warnings:
                    yield Warned(document, result.warnings)
                yield Used(document, result)
            elif isinstance(result, Dropped):
                yield LeftOutDocument(document, result)
            elif result is not None:
                yield result

    def _texts(
        self, unit: Unit, number: int, documents: Sequence[Document], records: Sequence[Record]
    ) -> list[Record | Dropped | Rejected | None]:
        transform = self._transforms[number]
        assert isinstance(transform, Transform)
        return [
            self._guarded(unit, number, document, partial(_changed, transform, record))
            for document, record in zip(documents, records, strict=True)
        ]

    def _records(
        self, unit: Unit, number: int, documents: Sequence[Document], records: Sequence[Record]
    ) -> list[Record | Dropped | Rejected | None]:
        transform = self._transforms[number]
        assert isinstance(transform, RecordTransform)
        try:
            results = list(transform.apply(records))
        except MemoryError:
            raise  # the machine's failure, not the documents'
        except Exception:  # noqa: BLE001  a transform is anyone's code; each record is tried alone below
            results = []
        if len(results) == len(records) and all(map(is_, results, records)):
            return [*records]
        if len(results) == len(records) and all(isinstance(each, Record | Dropped) for each in results):
            return [
                _nonempty(transform, each) if record.text else each
                for record, each in zip(records, results, strict=True)
            ]
        return [
            self._guarded(unit, number, document, partial(_alone, transform, record))
            for document, record in zip(documents, records, strict=True)
        ]

    def _guarded(
        self, unit: Unit, number: int, document: Document, call: Callable[[], Record | Dropped | None]
    ) -> Record | Dropped | Rejected | None:
        try:
            return call()
        except MemoryError:
            raise  # the machine's failure, not the document's
        except _WrongResultError as error:
            return self._failed(unit, document, number, str(error))
        except Exception as error:  # noqa: BLE001  a transform is anyone's code
            return self._failed(unit, document, number, f"{type(error).__name__}: {error}")

    def _failed(self, unit: Unit, document: Document, number: int, why: str) -> Rejected:
        name = f"{self._names[number]}, {type(self._transforms[number]).__name__},"
        why = " ".join(why[:_SHOWN_CHARACTERS].split())
        reason = f"{unit.name}: {name} failed on the document at position {document.start}, repair one of them: {why}"
        return Rejected(reason, document.start, document.end)


class _WrongResultError(Exception):
    """A transform returned something that its port does not allow."""


def _changed(transform: Transform, record: Record) -> Record | Dropped:
    text: object = transform(record.text)
    if not isinstance(text, str | None):
        msg = f"it gave {type(text).__name__} instead of text"
        raise _WrongResultError(msg)
    return replace(record, text=text) if text else Dropped(_reason(transform))


def _reason(transform: AnyTransform) -> str:
    """Return the name under which documents that ``transform`` left out are counted, such as ``length``."""
    return type(transform).__name__.removesuffix("Transform").lower() or "transform"


def _alone(transform: RecordTransform, record: Record) -> Record | Dropped:
    match list(transform.apply([record])):
        case [Record() | Dropped() as result]:
            return _nonempty(transform, result) if record.text else result
    msg = "it did not give one record or verdict for each record"
    raise _WrongResultError(msg)


def _nonempty(transform: RecordTransform, result: Record | Dropped) -> Record | Dropped:
    is_empty = isinstance(result, Record) and not result.text
    return Dropped(_reason(transform)) if is_empty else result


def _batches(
    items: Iterable[Document | Rejected], batch_characters: int
) -> Iterator[tuple[list[Document], Rejected | None]]:
    """Yield batches of documents, each with the rejected record that ended it."""
    batch: list[Document] = []
    characters = 0
    try:
        for item in items:
            if isinstance(item, Rejected):
                yield batch, item
                batch, characters = [], 0
                continue
            batch.append(item)
            characters += len(item.text)
            if characters >= batch_characters or len(batch) >= _BATCH_DOCUMENTS:
                yield batch, None
                batch, characters = [], 0
    except DataError:
        yield batch, None  # an error comes where its document would be
        raise
    yield batch, None
