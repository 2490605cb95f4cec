"""The stream of documents that training and evaluation read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from domain.cursor import Cursor
from domain.errors import DataError
from domain.order import unit_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from ports.data_source import DataSource
    from ports.tokenizer import Tokenizer

_GROUP_CHARACTERS = 1 << 17  # enough documents at once that the tokenizer works in parallel, few enough to stay small


class NothingToReadError(DataError):
    """A whole epoch has no document that is wanted."""


@dataclass(frozen=True, slots=True)
class PlacedDocument:
    """A text, where it starts and where the one behind it starts."""

    text: str
    start: Cursor
    end: Cursor


def stream_documents(
    source: DataSource, cursor: Cursor, *, seed: int, epochs: int | None, wanted: Callable[[str], bool]
) -> Iterator[PlacedDocument]:
    """Yield the ``wanted`` documents with text from ``cursor`` on, units shuffled, for ``epochs`` epochs or for ever.

    Raises ``NothingToReadError`` if a whole epoch has none.
    """
    units = source.units()
    for epoch in count(cursor.epoch):
        if epochs is not None and epoch >= epochs:
            return
        is_empty = cursor.unit == 0 and cursor.position == 0
        order = unit_order(len(units), seed=seed, epoch=epoch)
        for place in range(cursor.unit, len(units)):
            start = cursor
            for document in source.read(units[order[place]], cursor.position):
                end = Cursor(epoch, place, document.end)
                if document.text and wanted(document.text):
                    is_empty = False
                    skip = start.skip if document.start == start.position else 0
                    yield PlacedDocument(document.text, Cursor(epoch, place, document.start, skip), end)
            cursor = Cursor(epoch, place + 1)
        if is_empty:
            msg = f"none of the {len(units)} files, the first being {units[0].name}, holds any text to use"
            raise NothingToReadError(msg)
        cursor = Cursor(epoch + 1)


def tokenize(
    documents: Iterable[PlacedDocument], tokenizer: Tokenizer
) -> Iterator[tuple[NDArray[np.unsignedinteger], PlacedDocument]]:
    """Yield each document's token ids, end-of-text behind them, encoding many documents at once."""
    for group in _groups(documents):
        encoded = tokenizer.encode([document.text for document in group])
        end_of_text = np.array([tokenizer.end_of_text], encoded.ids.dtype)
        for tokens, document in zip(encoded, group, strict=True):
            yield np.concatenate([tokens, end_of_text]), document


def _groups(documents: Iterable[PlacedDocument]) -> Iterator[list[PlacedDocument]]:
    group: list[PlacedDocument] = []
    characters = 0
    try:
        for document in documents:
            group.append(document)
            characters += len(document.text)
            # at the end of an epoch too: a small corpus would be read over and over before its first batch
            if characters >= _GROUP_CHARACTERS or document.start.epoch > group[0].start.epoch:
                yield group
                group, characters = [], 0
    except DataError:
        if group:
            yield group  # an error comes where its document would be
        raise
    if group:
        yield group
