"""Sends the metrics of a run, its settings and texts about it to MLflow."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.adapters.monitor.library_tracker import LibraryTracker
from holdfast.domain.errors import ConfigurationError


def mlflow_tracker(tracking_uri: str | None = None, experiment: str = "holdfast") -> LibraryTracker:
    """Return a tracker with a run of ``experiment`` at ``tracking_uri``, else in ``mlflow.db`` beside the run folder.

    Metrics are sent every ten seconds and by ``flush``. They wait in the child process while the server is away; if too
    many wait, they are dropped, and ``record`` raises. MLflow cannot delete metrics: if it has later ones, ``rewind``
    continues in a new MLflow run below the first, whose tags name the former and the step. An infinity in a database of
    MLflow becomes the largest float. Notes are the artifacts ``notes/event.md`` and ``notes/sample.md``, followed by
    ``notes/sample-2.md`` and so on after a million characters. The client counts no users, prints nothing, does not
    retry, and waits at most 30 s for an answer, unless environment variables of MLflow say otherwise.
    """
    if any(find_spec(package) is None for package in ("sqlalchemy", "alembic")):
        msg = 'the monitor "mlflow" needs another package: pip install "holdfast-lm[mlflow]"'
        raise ConfigurationError(msg)
    options = {"tracking_uri": tracking_uri, "experiment": experiment}
    return LibraryTracker("mlflow", "mlflow", "holdfast.adapters.monitor.mlflow_process", options)
