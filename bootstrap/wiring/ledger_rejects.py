"""The rejected records of a run, for its ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.data.rejected_records import reason_of
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.data_streams import parts_of
from holdfast.domain.data.document_spans import UnitName
from holdfast.ports.ledger import Rejects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.bootstrap.wiring.run_parts import RunParts
    from holdfast.ports.data_source import DataSource


@final
class RejectedFiles:
    """The records in ``files``, those of ``rejected.jsonl`` of all ranks, each given once.

    ``names`` are those of the sources in ``source``.
    """

    def __init__(self, files: Sequence[Path], names: Sequence[str], source: DataSource) -> None:
        self._done = dict.fromkeys(files, (0, 0))  # bytes and records
        self._given: set[tuple[str, int]] = set()  # another rank may have met the same record
        self._default = names[0]
        parts = parts_of(source) if len(names) > 1 else ()
        self._names = {unit.name: name for name, part in zip(names, parts, strict=False) for unit in part.units()}

    def take(self) -> Rejects | None:
        """Return the records that were added since the last call, None if there are none."""
        found = []
        for file, (size, count) in self._done.items():
            now = file.stat().st_size if file.exists() else 0
            if now != size:
                records = list(JsonLines(file).read())
                found += records[count:]
                self._done[file] = (now, len(records))
        places = {
            place: each
            for each in found
            if "unit" in each
            and type(each.get("position")) is int
            and (place := (str(each["unit"]), each["position"])) not in self._given
        }
        self._given.update(places)
        found = list(places.values())
        if not found:
            return None
        units = [UnitName(self._names.get(str(each["unit"]), self._default), str(each["unit"])) for each in found]
        known = {unit: number for number, unit in enumerate(dict.fromkeys(units))}
        return Rejects(
            np.array([known[unit] for unit in units], np.int64),
            np.array([each["position"] for each in found], np.int64),
            tuple(map(reason_of, found)),
            tuple(str(each.get("reason", "")) for each in found),
            tuple(known),
        )


def rejected_files(parts: RunParts, names: Sequence[str], source: DataSource) -> RejectedFiles:
    """Return the rejected records of all ranks of the run with ``parts``; ``names`` are those of ``source``."""
    layout, ranks = RunLayout(parts.host.directory), parts.opened.process_group.size
    return RejectedFiles([*map(layout.rejected, range(ranks))], names, source)
