"""Sends metrics and texts to Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from holdfast.adapters.monitor.library_tracker import LibraryTracker

if TYPE_CHECKING:
    from collections.abc import Sequence


def wandb_tracker(
    project: str = "holdfast",
    entity: str | None = None,
    mode: Literal["online", "offline"] = "online",
    base_url: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
) -> LibraryTracker:
    """Return a tracker with a run in a project of W&B, online or in files of the run folder for ``wandb sync``.

    Each ``record`` is a row with the step in the column ``step``, which is the horizontal axis; W&B's own step counts
    the rows. A metric with the name of a column of W&B gets an underscore. Texts are lines of the tab Logs. W&B cannot
    remove rows: if its run has later ones, or was not finished, ``rewind`` continues in a new run of W&B, in the same
    group, whose configuration names the former and the step. The first has the id of the run, the others have a number
    behind it. The default of ``group`` is the id of the run, of a copy that of the original.
    """
    options = {
        "project": project,
        "entity": entity,
        "mode": mode,
        "base_url": base_url,
        "group": group,
        "tags": list(tags),
    }
    return LibraryTracker("wandb", "wandb", "holdfast.adapters.monitor.wandb_process", options)
