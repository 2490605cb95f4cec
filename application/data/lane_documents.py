"""Documents of one lane of a streamed source on their way into rows."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from holdfast.domain.data.loss_mask import join_masks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.text_reader import TokenizedGroup

_NO_HASHES = np.zeros(0, np.uint64)
_NONE = np.zeros(0, np.int64)


class DocumentPlaces(NamedTuple):
    """Where some documents come from, all int64 (documents,).

    ``starts`` and ``ends`` are the positions in the unit before and after the record of a document. ``offsets`` count
    the tokens of that record before what is here of the document, ``firsts`` those before the whole document. ``units``
    are numbers of the source's units, and ``turns`` those in the order of the lane.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    firsts: NDArray[np.int64]
    units: NDArray[np.int64]
    turns: NDArray[np.int64]

    def at(self, documents: slice | NDArray[np.bool_]) -> DocumentPlaces:
        """Return the places of some of the documents."""
        return DocumentPlaces(*(array[documents] for array in self))


@dataclass(frozen=True, slots=True, eq=False)
class LaneDocuments:
    """Some documents as flat token ``ids`` (tokens,), with their ``lengths`` int64 and ``places``.

    ``hashes`` uint64 (documents,) are empty unless they were requested. ``loss_mask`` bool (tokens,) is None if all
    tokens are trained on.
    """

    ids: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    places: DocumentPlaces
    hashes: NDArray[np.uint64]
    loss_mask: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, group: TokenizedGroup, unit: int, turn: int) -> Self:
        """Return the documents of ``group``, all from one unit, the lane's one of the number ``turn``."""
        lengths = np.diff(group.offsets)
        starts, ends = np.array(group.starts, np.int64), np.array(group.ends, np.int64)
        hashes = _NO_HASHES if group.hashes is None else group.hashes
        firsts, size = _firsts(starts, lengths), len(lengths)
        places = DocumentPlaces(starts, ends, firsts, firsts, np.full(size, unit), np.full(size, turn))
        return cls(group.ids, lengths, places, hashes, group.loss_mask)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the documents of all ``parts``, in order."""
        parts = [part for part in parts if len(part.lengths)] or [cls.empty()]
        if len(parts) == 1:
            return parts[0]
        mask = join_masks([part.loss_mask for part in parts], [len(part.ids) for part in parts])
        ids, lengths, hashes = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "lengths", "hashes")
        )
        places = DocumentPlaces(*map(np.concatenate, zip(*(part.places for part in parts), strict=True)))
        return cls(ids, lengths, places, hashes, mask)

    @classmethod
    def empty(cls) -> Self:
        """Return no documents."""
        places = DocumentPlaces(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE)
        return cls(np.zeros(0, np.uint16), _NONE, places, _NO_HASHES)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)

    def first_reaching(self, num_tokens: int) -> int | None:
        """Return the last document of the record that completes ``num_tokens`` tokens, None if there are fewer."""
        if len(self.ids) < num_tokens or not len(self.lengths):
            return None
        found = int(np.searchsorted(np.cumsum(self.lengths), num_tokens))
        while found + 1 < len(self.lengths) and self._record(found + 1) == self._record(found):
            found += 1
        return found

    def cut(self, documents: int, tokens: int = 0) -> tuple[Self, Self]:
        """Return the first ``documents`` with the first ``tokens`` of the next one, and the rest."""
        before = int(self.lengths[:documents].sum()) + tokens
        first, last = slice(documents + (tokens > 0)), slice(documents, None)
        beginning, rest = self._part(slice(before), first), self._part(slice(before, None), last)
        if tokens:
            lengths, offsets = rest.lengths.copy(), rest.places.offsets.copy()
            beginning = replace(beginning, lengths=np.append(beginning.lengths[:-1], tokens))
            lengths[0] -= tokens
            offsets[0] += tokens
            rest = replace(rest, lengths=lengths, places=rest.places._replace(offsets=offsets))
        return beginning, rest

    def without(self, num_tokens: int) -> Self:
        """Return the documents without their first ``num_tokens`` tokens, at most all of them."""
        ends = np.cumsum(self.lengths)
        documents = int(np.searchsorted(ends, num_tokens, side="right"))
        return self.cut(documents, num_tokens - int(ends[documents - 1] if documents else 0))[1]

    def fitted(self, length: int, overflow: str) -> Self:
        """Return the documents as ``overflow`` leaves them: those of more than ``length`` tokens cut or dropped."""
        if overflow == "split" or not (self.lengths > length).any():
            return self
        kept = np.full(len(self.lengths), True) if overflow == "truncate" else self.lengths <= length
        lengths = np.where(kept, np.minimum(self.lengths, length), 0)
        begins = np.cumsum(self.lengths) - self.lengths
        tokens = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        places = self.places.at(kept)
        firsts = _firsts(places.starts, lengths[kept])
        places = places._replace(offsets=firsts, firsts=firsts)
        return replace(self._part(tokens, kept), lengths=lengths[kept], places=places)

    def to_json(self) -> Mapping[str, Any]:
        """Return the tokens, the ids of documents and the loss mask as JSON, without their places in the data."""
        mask = None if self.loss_mask is None else _text(self.loss_mask.astype(np.uint8))
        ids = self.ids.astype(np.uint32)
        return {"ids": _text(ids), "lengths": self.lengths.tolist(), "hashes": self.hashes.tolist(), "mask": mask}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the documents that ``to_json`` described, at no place."""
        lengths = np.array(record["lengths"], np.int64)
        none = np.zeros_like(lengths)
        mask = None if record["mask"] is None else np.frombuffer(b64decode(record["mask"]), np.uint8).astype(np.bool_)
        ids = np.frombuffer(b64decode(record["ids"]), np.uint32)
        hashes = np.array(record["hashes"], np.uint64)
        return cls(ids, lengths, DocumentPlaces(none, none, none, none, none, none), hashes, mask)

    def _record(self, document: int) -> tuple[int, int]:
        return int(self.places.turns[document]), int(self.places.ends[document])

    def _part(self, tokens: slice | NDArray[np.int64], documents: slice | NDArray[np.bool_]) -> Self:
        return type(self)(
            self.ids[tokens],
            self.lengths[documents],
            self.places.at(documents),
            self.hashes[documents] if len(self.hashes) else self.hashes,
            None if self.loss_mask is None else self.loss_mask[tokens],
        )


def _firsts(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of tokens of the same record before each document of one unit."""
    begins = np.cumsum(lengths) - lengths
    is_first = np.append(True, starts[1:] != starts[:-1])[: len(starts)]
    firsts: NDArray[np.int64] = begins - begins[is_first][np.cumsum(is_first) - 1]
    return firsts


def _text(array: NDArray[Any]) -> str:
    return b64encode(array.tobytes()).decode()
