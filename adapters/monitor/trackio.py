"""Records metrics and texts with trackio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.monitor.library_tracker import LibraryTracker

if TYPE_CHECKING:
    from pathlib import Path


def trackio_tracker(
    project: str = "holdfast", folder: Path | None = None, space_id: str | None = None
) -> LibraryTracker:
    """Return a tracker with a SQLite file of trackio for each project, in ``folder`` or in trackio's own folder.

    The id of trackio's run is the id of the run. Rows are stored at least once a second while there are new ones, and
    by ``flush``. Texts are alerts of level info. A metric with the name of a column of trackio gets an underscore. With
    ``space_id`` the project is also copied to a Space on the Hugging Face Hub at the end of each start that did not
    fail: a Space cannot forget rows.
    """
    options = {
        "project": project,
        "folder": None if folder is None else str(folder.absolute()),
        "space_id": space_id,
    }
    return LibraryTracker("trackio", "trackio", "holdfast.adapters.monitor.trackio_process", options)
