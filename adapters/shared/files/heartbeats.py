"""Heartbeats of the ranks of a run, as files in its folder."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.domain.fault_tolerance.liveness import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@final
class HeartbeatFiles:
    """One small file per rank in ``folder``, replaced as a whole; each of the ``size`` ranks reads all of them."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._folder = folder
        self._path = folder / f"rank{rank}.json"
        self._size = size

    def tell(self, beat: Heartbeat) -> None:
        """Replace this rank's heartbeat; errors of the disk are ignored here, as saving reports them."""
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            replace_file(self._path, json.dumps(beat.to_json()).encode(), is_durable=False)

    def all(self) -> Sequence[Heartbeat]:
        """Return the last heartbeat of each rank."""
        beats = []
        for rank in range(self._size):
            with suppress(OSError, ValueError, KeyError, TypeError):  # not there yet, or gone
                beats.append(Heartbeat.from_json(parse_json(read_regular(self._folder / f"rank{rank}.json"))))
        return beats

    def leave(self) -> None:
        """Remove this rank's heartbeat."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
