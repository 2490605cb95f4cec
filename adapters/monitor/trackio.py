"""Records metrics and texts with trackio."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.monitor.library_process import LibraryCalls
from holdfast.ports.monitor import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.ports.monitor import EndState, NoteKind, RunDescription


@final
class TrackioTracker(Tracker):
    """Records a run in a SQLite file of trackio, one for each project, in ``folder`` or in trackio's own folder.

    The id of trackio's run is the id of the run. Rows are stored at least once a second while there are new ones, and
    by ``flush``. Texts are alerts of level info. A metric with the name of a column of trackio gets an underscore. With
    ``space_id`` the project is also copied to a Space on the Hugging Face Hub at the end of each start that did not
    fail: a Space cannot forget rows.
    """

    def __init__(self, project: str = "holdfast", folder: Path | None = None, space_id: str | None = None) -> None:
        options = {
            "project": project,
            "folder": None if folder is None else str(folder.absolute()),
            "space_id": space_id,
        }
        self._library = LibraryCalls("trackio", "trackio", "holdfast.adapters.monitor.trackio_process", options)

    @override
    def begin(self, run: RunDescription) -> None:
        self._library.begin(run)

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._library.record(step, metrics)

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        self._library.note(step, kind, text)

    @override
    def rewind(self, step: int) -> None:
        self._library.rewind(step)

    @override
    def flush(self) -> None:
        self._library.flush()

    @override
    def finish(self, state: EndState) -> None:
        self._library.finish(state)

    @override
    def close(self) -> None:
        self._library.close()
