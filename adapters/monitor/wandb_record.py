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
    """A run of W&B in ``place``, a project on a server or offline.

    It has the steps after ``after_step`` of the run of W&B ``continues``, if that is given. It had ``rows`` rows, up to
    ``last_step``, when it was finished; until then ``is_open``, and its library has certainly stored those up to
    ``stored_step`` (None: unknown).
    """

    id: str
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

    def next(self, continues: str | None, after_step: int, taken: str = "") -> WandbEntry:
        """Return a run of W&B whose id has a higher number than all before, and than ``taken``."""
        number = 1 + max(
            (self._number(name) for name in [taken, *(entry.id for entry in self._entries)] if name), default=0
        )
        return WandbEntry(self._id(number), self._place, continues, after_step, stored_step=after_step)

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
        numbers = sorted({self._number(path.stem.removeprefix("run-")) for path in paths})
        return [WandbEntry(self._id(number), self._place, stored_step=None) for number in numbers]

    def _id(self, number: int) -> str:
        return self._run_id if number == 1 else f"{self._run_id}-{number}"

    def _number(self, name: str) -> int:
        """Return the number at the end of an id, 1 without one."""
        end = name.removeprefix(self._run_id).removeprefix("-")
        return int(end) if end.isdecimal() else 1
