"""Where the next batch starts in the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Cursor:
    """The first token that no batch has carried yet, named by where its document starts.

    The packer's held-back tokens follow from it by reading the document again, so no buffer is ever saved.
    ``unit`` counts in the epoch's shuffled order; ``position`` is the data source's own, 0 being the unit's start;
    ``skip`` is how many tokens of that document earlier rows carried. Rows are packed and shuffled in windows:
    the place is that of the window's first token, and ``taken`` counts the window's rows that batches carried.
    """

    epoch: int = 0
    unit: int = 0
    position: int = 0
    skip: int = 0
    taken: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the cursor as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, int]) -> Self:
        """Return the cursor that ``to_json`` described."""
        return cls(**record)
