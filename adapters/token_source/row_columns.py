"""Rows of a table whose columns hold token ids and, id by id, what is trained on and what is padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

LABELS, PADDING, POSITIONS = "labels", "attention_mask", "position_ids"
MASKS = ("loss_mask", "assistant_masks", "completion_mask")

_IGNORED = -100


def columns_beside(names: Sequence[str], column: str) -> list[str]:
    """Return those of ``names`` that say something about the ids in ``column``."""
    return [name for name in (LABELS, *MASKS, PADDING, POSITIONS) if name in names and name != column]


@final
class TokenRows:
    """Consecutive rows of a table: ``ids`` (tokens,), and the ``row`` of each, int64 (tokens,), in ``num_rows`` rows.

    ``is_trained`` (tokens,) is the loss mask, ``is_first`` (tokens,) says where a document begins within its row; None
    if all tokens are trained on, and if no document does. ``name(row)`` names a row in messages.
    """

    def __init__(
        self, ids: NDArray[np.integer[Any]], row: NDArray[np.int64], num_rows: int, name: Callable[[int], str]
    ) -> None:
        self.ids = ids
        self.row = row
        self.num_rows = num_rows
        self.is_trained: NDArray[np.bool_] | None = None
        self.is_first: NDArray[np.bool_] | None = None
        self._name = name
        self._given = row
        self._kept = np.arange(len(ids))

    @property
    def empty(self) -> NDArray[np.int64]:
        """Return for each row that was given without ids the number of the ids before it."""
        given, left = (np.bincount(rows, minlength=self.num_rows) for rows in (self._given, self.row))
        found: NDArray[np.int64] = np.cumsum(left)[given == 0]
        return found

    def place(self, number: int) -> str:
        """Return the name of the place of the id ``number``, for messages."""
        position = number - int(np.searchsorted(self.row, self.row[number]))
        return f"the id at position {position} of {self._name(int(self.row[number]))}"

    def use(self, column: str, values: NDArray[np.integer[Any]], row: NDArray[np.int64]) -> None:
        """Take ``values`` of ``column``, in the rows ``row``, into account; raises ``DataError`` if they fit no ids.

        Padding must be used after the labels and masks, and the positions last.
        """
        if not np.array_equal(row, self._given):
            lengths = [np.bincount(rows, minlength=self.num_rows) for rows in (row, self._given)]
            first = int(np.argmax(lengths[0] != lengths[1]))
            msg = (
                f"{self._name(first)} has {lengths[0][first]} values in the column {column!r} for {lengths[1][first]} "
                "token ids: each id needs one"
            )
            raise DataError(msg)
        if column == POSITIONS:
            self._begin(values[self._kept])
            return
        if column == LABELS:
            self._train_on(self._labelled(values))
            return
        if len(values) and not (int(values.min()) >= 0 and int(values.max()) <= 1):
            first = int(np.argmax((values != 0) & (values != 1)))
            msg = f"the column {column!r} has {values[first]} for {self.place(first)}: it must have 0 or 1"
            raise DataError(msg)
        if column == PADDING:
            self._keep(values == 1)
        else:
            self._train_on(values == 1)

    def _labelled(self, labels: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        is_labelled: NDArray[np.bool_] = labels != _IGNORED
        if (is_other := is_labelled & (labels != self.ids)).any():
            first = int(np.argmax(is_other))
            msg = (
                f"the label of {self.place(first)} is {labels[first]}, but the id is {self.ids[first]}: labels must be "
                f"the ids themselves, not shifted, or {_IGNORED} for what is not trained on"
            )
            raise DataError(msg)
        return is_labelled

    def _train_on(self, is_trained: NDArray[np.bool_]) -> None:
        self.is_trained = is_trained if self.is_trained is None else self.is_trained & is_trained

    def _keep(self, is_kept: NDArray[np.bool_]) -> None:
        kept = np.flatnonzero(is_kept)
        has_gap = (np.diff(kept) != 1) & (np.diff(self.row[kept]) == 0)
        if has_gap.any():
            place = self.place(int(kept[np.argmax(has_gap)]) + 1)
            msg = f"the column {PADDING!r} hides {place}, within the row: only padding around a row is left out"
            raise DataError(msg)
        self.ids, self.row, self._kept = self.ids[kept], self.row[kept], kept
        self.is_trained = None if self.is_trained is None else self.is_trained[kept]

    def _begin(self, positions: NDArray[np.integer[Any]]) -> None:
        is_first = positions == 0
        begins_row = np.diff(self.row, prepend=-1) != 0
        is_next = np.diff(positions.astype(np.int64), prepend=-1) == 1
        if (is_odd := ~is_first & (begins_row | ~is_next)).any():
            first = int(np.argmax(is_odd))
            msg = (
                f"the column {POSITIONS!r} has {positions[first]} for {self.place(first)}: positions must count from 0 "
                "in each document"
            )
            raise DataError(msg)
        self.is_first = is_first & ~begins_row
