"""Sends the metrics of a run, its settings and texts about it to MLflow."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.monitor.library_process import LibraryCalls
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.monitor import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.ports.monitor import EndState, NoteKind, RunDescription


@final
class MlflowTracker(Tracker):
    """A run of ``experiment`` at ``tracking_uri``, by default in ``mlflow.db`` beside the run folder.

    Metrics are sent every ten seconds and by ``flush``. They wait in the child process while the server is away; if too
    many wait, they are dropped, and ``record`` raises. MLflow cannot delete metrics: if it has later ones, ``rewind``
    copies those that stay into a new MLflow run, and deletes the old one, which MLflow still shows among deleted runs.
    An infinity in a database of MLflow becomes the largest float. Notes are the artifacts ``notes/event.md`` and
    ``notes/sample.md``. The client counts no users, prints nothing, does not retry, and waits at most 30 s for an
    answer, unless environment variables of MLflow say otherwise.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "holdfast") -> None:
        if any(find_spec(package) is None for package in ("sqlalchemy", "alembic")):
            msg = 'the monitor "mlflow" needs another package: pip install "holdfast-lm[mlflow]"'
            raise ConfigurationError(msg)
        options = {"tracking_uri": tracking_uri, "experiment": experiment}
        self._library = LibraryCalls("mlflow", "mlflow", "holdfast.adapters.monitor.mlflow_process", options)

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
        try:
            if self._library.is_running:
                self._library.flush()
        finally:
            self._library.close()
