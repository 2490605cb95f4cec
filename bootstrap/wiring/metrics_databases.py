"""Builds the trackers that store metrics in a SQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.monitor.metrics_schema import METRICS
from holdfast.bootstrap.wiring.connection_string import connection_string
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.bootstrap.run_folder.layout import RunLayout
    from holdfast.configs.sections.monitors import PostgresMonitorSettings, SqliteMonitorSettings
    from holdfast.ports.monitor import Tracker

_TRACKER = "holdfast.adapters.monitor.sql_metrics:SqlTracker"


def sqlite_tracker(section: SqliteMonitorSettings, layout: RunLayout) -> Tracker:
    """Return the tracker of the kind ``sqlite`` for the run folder of ``layout``; its file is opened later."""
    database = lazy("holdfast.adapters.shared.sql.sqlite_database:SqliteDatabase")(
        section.path or layout.metrics_database, METRICS, connects_at_once=False
    )
    tracker: Tracker = lazy(_TRACKER)(database)
    return tracker


def postgres_tracker(section: PostgresMonitorSettings) -> Tracker:
    """Return the tracker of the kind ``postgres``; it connects later, as training does not need the server.

    Raises ``ConfigurationError`` for a connection string that cannot be read, and without the extra ``postgres``.
    """
    dsn = connection_string(section.dsn, METRICS.setting)
    try:
        postgres = lazy("holdfast.adapters.shared.sql.postgres_database:PostgresDatabase")
        tracker: Tracker = lazy(_TRACKER)(postgres(dsn, METRICS, connects_at_once=False))
    except ImportError as error:
        msg = 'the monitor "postgres" needs another package: pip install "holdfast-lm[postgres]"'
        raise ConfigurationError(msg) from error
    return tracker
