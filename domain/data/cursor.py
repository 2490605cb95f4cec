"""The position in the data at which the next batch starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LanePosition(NamedTuple):
    """The position of one reader of a streamed source: the first document of its window of packed rows.

    ``unit`` counts the lane's units in the shuffled order of the epoch; ``position`` is a position of the data source,
    0 for the start of the unit; ``taken`` counts the rows of the window that batches have already used, and is
    ``LANE_ENDED`` for a lane without further rows in its epoch. ``skipped`` counts the tokens of the record at
    ``position`` that belong to earlier windows. The window is made again by reading from there, so no buffer is saved.
    """

    epoch: int = 0
    unit: int = 0
    position: int = 0
    taken: int = 0
    skipped: int = 0


LANE_ENDED = -1


@dataclass(frozen=True, slots=True)
class Cursor:
    """The number of samples (rows) in all batches since the run began, over all ranks.

    If rows are read by random access, this number is the whole position; if documents are streamed, ``lanes`` hold the
    position of each reader.
    """

    samples: int = 0
    lanes: tuple[LanePosition, ...] = ()

    @classmethod
    def join(cls, cursors: Sequence[Self]) -> Self:
        """Return the joint cursor of all ranks at the same sample; each lane comes from the rank that reads it."""
        return cls(cursors[0].samples, tuple(map(max, zip(*(cursor.lanes for cursor in cursors), strict=True))))

    def to_json(self) -> dict[str, Any]:
        """Return the cursor as JSON."""
        return {"samples": self.samples, "lanes": [list(lane if lane.skipped else lane[:4]) for lane in self.lanes]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the cursor that ``to_json`` described."""
        return cls(int(record["samples"]), tuple(LanePosition(*map(int, lane)) for lane in record["lanes"]))
