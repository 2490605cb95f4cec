"""The pieces of documents that the samples of a run contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NO_POSITION = -1  # of a document in its unit, if the tokens were made without a record of it


class UnitName(NamedTuple):
    """The name of a source and that of one of its units, such as a file."""

    source: str
    unit: str


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Pieces of documents in samples, ordered by sample and by place in it; one element of each array for each piece.

    ``sample`` int64 is the number of the sample since the run began, so the row of a step is ``sample`` minus the
    first sample of the step. ``epoch`` int64 is the pass over the source, from 0. ``unit`` int64 is an index of
    ``units``. ``document`` uint64 is the id of the document, and ``position`` int64 is its position in the unit, or
    ``NO_POSITION``. The piece has ``num_tokens`` int64 tokens from the token ``first_token`` int64 of the document on.
    """

    sample: NDArray[np.int64]
    epoch: NDArray[np.int64]
    unit: NDArray[np.int64]
    document: NDArray[np.uint64]
    position: NDArray[np.int64]
    first_token: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    units: tuple[UnitName, ...]

    @classmethod
    def empty(cls, units: tuple[UnitName, ...] = ()) -> Self:
        """Return no spans."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, np.zeros(0, np.uint64), nothing, nothing, nothing, units)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the spans of all ``parts``, in order; parts may name different units."""
        if not parts:
            return cls.empty()
        numbers: dict[UnitName, int] = {}
        units = []
        for part in parts:
            table = np.array([numbers.setdefault(name, len(numbers)) for name in part.units], np.int64)
            units.append(table[part.unit])
        return cls(
            np.concatenate([part.sample for part in parts]),
            np.concatenate([part.epoch for part in parts]),
            np.concatenate(units),
            np.concatenate([part.document for part in parts]),
            np.concatenate([part.position for part in parts]),
            np.concatenate([part.first_token for part in parts]),
            np.concatenate([part.num_tokens for part in parts]),
            tuple(numbers),
        )

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.sample)

    @property
    def column(self) -> NDArray[np.int64]:
        """Return the position of the first token of each piece in its row, int64 (pieces,)."""
        before = np.cumsum(self.num_tokens) - self.num_tokens
        is_first = np.append(True, self.sample[1:] != self.sample[:-1])[: len(self)]
        return before - np.maximum.accumulate(np.where(is_first, before, 0))

    def at(self, places: NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Return the spans at ``places``: their numbers, int64, or whether each is chosen, bool (pieces,)."""
        return Spans(
            self.sample[places],
            self.epoch[places],
            self.unit[places],
            self.document[places],
            self.position[places],
            self.first_token[places],
            self.num_tokens[places],
            self.units,
        )
