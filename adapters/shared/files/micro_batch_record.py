"""A small file that remembers which micro-batch sizes fit into memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular, sealed, unsealed
from holdfast.domain.training.micro_batch import MicroBatchState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@final
class MicroBatchRecord:
    """Stores the ``MicroBatchState`` for ``key`` (model, length, precision, device) in ``path``.

    It only saves time: if it is damaged, has another key or cannot be written, ``say`` reports that, and the sizes are
    found again.
    """

    def __init__(self, path: Path, key: str, say: Callable[[str], object]) -> None:
        self._path = path
        self._key = key
        self._say = say

    def read(self) -> MicroBatchState | None:
        """Return the stored state of ``key``, None if no state is stored or the file cannot be read."""
        try:
            record = unsealed(parse_json(read_regular(self._path)))
            rows, shortages = record["rows"], {int(size): times for size, times in record["shortages"].items()}
            are_counts = all(isinstance(count, int) and count > 0 for count in (rows, *shortages, *shortages.values()))
            of_this = record["key"] == self._key
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._say(f"{self._path} is ignored, as it cannot be read: {type(error).__name__}")
            return None
        if not are_counts:
            self._say(f"{self._path} is ignored, as it holds values that are not counts")
        return MicroBatchState(rows, shortages) if are_counts and of_this else None

    def write(self, known: MicroBatchState) -> None:
        """Store ``known``, atomically."""
        record = {"key": self._key, "rows": known.rows, "shortages": known.shortages}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(sealed(record)).encode(), is_shared=True)
        except OSError as error:
            self._say(f"{self._path} cannot be written ({error.strerror}): the micro-batch is not remembered")
