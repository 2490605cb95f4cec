"""The runs of W&B that a run has had, in ``wandb/holdfast.json`` of the run folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.atomic_replace import replace_file
from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.adapters.shared.files.sealed_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class WandbEntry:
    """A run of W&B.

    ``number`` counts those of a run from 1 on, and ``place`` is a project on a server, or offline. It has the steps
    after ``after_step`` of the run of W&B ``continues``, if that is given. It had ``rows`` rows, up to ``last_step``,
    when it was finished; until then ``is_open``, and its library has certainly stored those up to ``stored_step``
    (None: unknown).
    """

    id: str
    number: int
    place: str
    continues: str | None = None
    after_step: int = 0
    rows: int = 0
    last_step: int = -1
    stored_step: int | None = 0
    is_open: bool = True


@final
class WandbRecord:
    """The runs of W&B of the run ``run_id`` in its ``folder``, of which those at ``place`` are continued.

    A folder that an earlier version has written has no record, and one run of W&B with the id of the run.
    """

    def __init__(self, folder: Path, run_id: str, place: str) -> None:
        self._path = folder / "holdfast.json"
        self._run_id, self._place = run_id, place
        self.former: str | None = None
        """The newest run of W&B of the run whose folder this one is a copy of."""
        self._entries = self._read()

    @property
    def newest(self) -> WandbEntry | None:
        """Return the run of W&B to continue, None if there is none at this place."""
        return next((entry for entry in reversed(self._entries) if entry.place == self._place), None)

    def next(self, continues: str | None, after_step: int, number: int = 0) -> WandbEntry:
        """Return a run of W&B with the next number, at least one more than ``number``."""
        number = 1 + max([number, *(entry.number for entry in self._entries)])
        return WandbEntry(self._id(number), number, self._place, continues, after_step, stored_step=after_step)

    def add(self, entry: WandbEntry) -> None:
        """Store that ``entry`` is the newest run of W&B; raises ``OSError``."""
        self._entries.append(entry)
        self.write()

    def write(self) -> None:
        """Store the entries; raises ``OSError``."""
        content = {"run_id": self._run_id, "runs": [asdict(entry) for entry in self._entries]}
        replace_file(self._path, json.dumps(content, indent=1).encode())

    def _read(self) -> list[WandbEntry]:
        try:
            found = parse_json(read_regular(self._path))
            entries = [WandbEntry(**entry) for entry in found["runs"]]
            is_own = found["run_id"] == self._run_id
        except (OSError, ValueError, TypeError, KeyError):  # none, or a damaged one
            return self._found()
        if not is_own:
            self.former = entries[-1].id if entries else None
            return []
        return entries

    def _found(self) -> list[WandbEntry]:
        """Return entries for the files of the library, whose names have the ids of its runs."""
        paths = self._path.parent.glob(f"*run-*/run-{self._run_id}*.wandb")
        ends = {path.stem.removeprefix(f"run-{self._run_id}").removeprefix("-") or "1" for path in paths}
        numbers = sorted(int(end) for end in ends if end.isdecimal())
        return [WandbEntry(self._id(number), number, self._place, stored_step=None) for number in numbers]

    def _id(self, number: int) -> str:
        return self._run_id if number == 1 else f"{self._run_id}-{number}"
