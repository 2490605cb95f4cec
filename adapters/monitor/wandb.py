"""Sends metrics and texts to Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.monitor.library_process import LibraryCalls
from holdfast.ports.monitor import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.ports.monitor import EndState, NoteKind, RunDescription


@final
class WandbTracker(Tracker):
    """Records a run in a project of W&B, online or in files of the run folder, which ``wandb sync`` uploads later.

    The id of W&B's run is the id of the run. Each ``record`` is a row with the step in the column ``step``, which is
    the horizontal axis; W&B's own step counts the rows. A metric with the name of a column of W&B gets an underscore.
    Texts are lines of the tab Logs. ``rewind`` removes rows from the files; online it also asks the server to rewind
    the run. A server that refuses that keeps the rows of the later steps: ``rewind`` raises ``StateError`` once, and
    these steps are not sent again.
    """

    def __init__(
        self,
        project: str = "holdfast",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
        base_url: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        options = {
            "project": project,
            "entity": entity,
            "mode": mode,
            "base_url": base_url,
            "group": group,
            "tags": list(tags),
        }
        self._library = LibraryCalls("wandb", "wandb", "holdfast.adapters.monitor.wandb_process", options)

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
