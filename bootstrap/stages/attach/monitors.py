"""Opens the monitors of a run."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.monitor.sql_metrics import METRICS
from holdfast.application.handlers.log_events import sentence_of
from holdfast.application.handlers.monitor_thread import MonitorThread, close_all
from holdfast.application.handlers.record_metrics import MonitorLimits, RecordMetrics
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.bootstrap.run_folder.layout import RunLayout, environment
from holdfast.bootstrap.run_folder.metrics_record import MetricsRecord
from holdfast.configs.rendering import dump_settings
from holdfast.configs.secret_masking import mask, mask_text
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import RunDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import ExitStack

    from holdfast.adapters.monitor.prometheus import PrometheusTracker
    from holdfast.application.handlers.profile_steps import Compilations
    from holdfast.bootstrap.stages.open_run.screen import Screen
    from holdfast.configs.sections.monitors import (
        PageMonitorSettings,
        PostgresMonitorSettings,
        PrometheusMonitorSettings,
        SqliteMonitorSettings,
    )
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.events import Event
    from holdfast.ports.monitor import Monitor, Tracker
    from holdfast.ports.optimizer import Trainable

_SECONDS_TO_CLOSE = 5.0
_WITHOUT_PAST = ("prometheus",)  # its counters would count the steps of earlier starts as new ones
_NO_PART_OF_PLACE = {"kind", "group", "tags"}


def open_monitors(
    overrides: Mapping[str, Any], settings: TrainSettings, screen: Screen, stack: ExitStack
) -> list[MonitorThread]:
    """Return the monitors of a run, which are closed when ``stack`` ends; the console is that of ``screen``."""
    named = build_monitors(overrides, settings.monitors, settings.run.directory, screen)
    record = MetricsRecord(settings.run.directory) if any(name == "jsonl" for name, _ in named) else None
    sections = [] if "monitors" in overrides else settings.monitors
    keys: list[str | None] = [_key(section, settings) for section in sections]
    keys += [None] * (len(named) - len(keys))  # those of the host get no metrics of earlier starts
    if record is not None:
        for section, key in zip(sections, keys, strict=False):
            if key is not None and record.sent(key) and _is_removed(_file_of(section, settings.run.directory)):
                with suppress(StateError):
                    record.note_sent(key, 0)  # it begins anew
    threads = [
        MonitorThread(name, monitor, None if name.lower().startswith(_WITHOUT_PAST) else record, key=key)
        for (name, monitor), key in zip(named, keys, strict=True)
    ]
    stack.callback(lambda: screen.say(*close_all(threads, _SECONDS_TO_CLOSE)))
    return threads


def build_monitors(
    overrides: Mapping[str, Any], sections: Iterable[Any], folder: Path, screen: Screen
) -> list[tuple[str, Monitor]]:
    """Return one monitor for each section, in order, or those in ``overrides``, each with a name of its own.

    The console is that of ``screen``. ``added_monitors`` in ``overrides`` come last.
    """
    added = [(type(monitor).__name__, monitor) for monitor in overrides.get("added_monitors", ())]
    if "monitors" in overrides:
        return _with_names([*((type(monitor).__name__, monitor) for monitor in overrides["monitors"]), *added])
    layout = RunLayout(folder)
    built_in: dict[str, Callable[[Any], Any]] = {
        "console": lambda _: screen.console,
        "jsonl": lambda _: lazy("holdfast.adapters.monitor.jsonl:JsonlMonitor")(layout.metrics),
        "tensorboard": lambda _: lazy("holdfast.adapters.monitor.tensorboard:TensorboardTracker")(layout.tensorboard),
        "mlflow": lambda section: lazy("holdfast.adapters.monitor.mlflow:mlflow_tracker")(
            section.tracking_uri, section.experiment
        ),
        "structlog": lambda _: lazy("holdfast.adapters.monitor.structlog:StructlogMonitor")(),
        "wandb": lambda section: lazy("holdfast.adapters.monitor.wandb:wandb_tracker")(
            **section.model_dump(exclude={"kind"})
        ),
        "trackio": lambda section: lazy("holdfast.adapters.monitor.trackio:trackio_tracker")(
            section.project, section.dir, section.space_id
        ),
        "page": lambda section: lazy("holdfast.adapters.monitor.page:PageMonitor")(
            _page_command(section, folder), screen.say
        ),
        "prometheus": lambda section: open_prometheus(section, layout, screen.say),
        "sqlite": lambda section: sqlite_tracker(section, layout),
        "postgres": postgres_tracker,
    }
    return _with_names([*((section.kind, _build(section, built_in)) for section in sections), *added])


def _key(section: Any, settings: TrainSettings) -> str:
    """Return a name for the destination of a monitor: another one lacks the metrics that were sent so far."""
    place = section.model_dump(mode="json", exclude=_NO_PART_OF_PLACE)
    if section.kind == "mlflow" and section.tracking_uri is None:
        usual = os.environ.get("MLFLOW_TRACKING_URI") or str(settings.run.directory.absolute().parent)
        place["tracking_uri"] = usual
    text = json.dumps(mask(place), sort_keys=True)
    return f"{section.kind} {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _file_of(section: Any, folder: Path) -> Path | None:
    """Return the file or the folder in which a monitor of the run in ``folder`` stores metrics, None if unknown."""
    layout = RunLayout(folder)
    match section.kind:
        case "sqlite":
            return Path(section.path or layout.metrics_database)
        case "tensorboard":
            return layout.tensorboard
        case "wandb" if section.mode == "offline":
            return layout.wandb
        case "mlflow" if section.tracking_uri is None and "MLFLOW_TRACKING_URI" not in os.environ:
            return folder.absolute().parent / "mlflow.db"
        case "trackio" if section.dir is not None:
            # the names of trackio's files
            name = "".join(each for each in section.project if each.isalnum() or each in "-_").rstrip()
            return Path(section.dir) / f"{name or 'default'}.db"
    return None


def _is_removed(place: Path | None) -> bool:
    """Return whether there is nothing at ``place``; a place that cannot be looked at may hold something."""
    try:
        return place is not None and not place.exists()
    except OSError:
        return False


def _build(section: Any, built_in: Mapping[str, Callable[[Any], Any]]) -> Monitor:
    if section.kind in built_in:
        monitor: Monitor = built_in[section.kind](section)
    else:
        plugin = load_plugin("monitor", section.kind, built_in=built_in)
        check_options("monitor", section.kind, plugin, **section.options)
        monitor = build_plugin("monitor", section.kind, plugin, **section.options)
    return monitor


def _page_command(section: PageMonitorSettings, folder: Path) -> list[str]:
    """Return the command that serves the page of the run in ``folder`` until its standard input ends."""
    token = [] if section.token_from is None else ["--token-from", section.token_from]
    port = [] if section.port is None else ["--port", str(section.port)]
    command = [sys.executable, "-m", "holdfast", "watch", str(folder), "--host", section.host, *port, *token]
    return [*command, "--with-input"]


def _with_names(monitors: Iterable[tuple[str, Monitor]]) -> list[tuple[str, Monitor]]:
    """Return the monitors with different names, as the run records by name what it has sent to each."""
    counts: dict[str, int] = {}
    named = []
    for kind, monitor in monitors:
        counts[kind] = counts.get(kind, 0) + 1
        named.append((kind if counts[kind] == 1 else f"{kind}-{counts[kind]}", monitor))
    return named


def begin_monitors(
    threads: Sequence[MonitorThread], settings: TrainSettings, run_id: str, record: Mapping[str, Any], num_ranks: int
) -> None:
    """Tell the trackers which run begins; ``record`` is the content of ``run.json``."""
    run = RunDescription(
        run_id=run_id,
        name=settings.run.shown_name,
        folder=settings.run.directory,
        settings=dump_settings(settings),
        data={version["name"]: version["id"] for version in versions_read(record)},
        environment=mask(environment()),
        num_ranks=num_ranks,
        copied_from=[entry["id"] for entry in record.get("history", []) if "copied_from" in entry],
    )
    for thread in threads:
        thread.begin(run)


def record_metrics(
    monitors: Sequence[MonitorThread],
    settings: TrainSettings,
    trainable: Trainable,
    compilations: Compilations | None,
    extra_metrics: Sequence[Callable[[], Mapping[str, float]]],
    report: Callable[[str], object],
) -> RecordMetrics:
    """Return the handler that passes the metrics of a run to its monitors; ``report`` is told which it lacks."""
    hardware = trainable.hardware
    if hardware.peak_flops is not None and hardware.flops_per_token is None:
        report("mfu is not recorded: the arithmetic of a token is not known for a model of this architecture")
    return RecordMetrics(
        monitors,
        trainable,
        compilations,
        extra_metrics=extra_metrics,
        sentence_of=note_of,
        report=report,
        limits=MonitorLimits(settings.recovery.grace_seconds),
    )


def note_of(event: Event) -> str | None:
    """Return ``event`` as a sentence for trackers, without secrets, None if it is not worth a note."""
    text = sentence_of(event)
    return None if text is None else mask_text(text)


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


def open_prometheus(
    section: PrometheusMonitorSettings, layout: RunLayout, report: Callable[[str], object]
) -> PrometheusTracker:
    """Return the tracker of the kind ``prometheus`` for the run folder of ``layout``; ``report`` gets its address.

    Raises ``ConfigurationError`` if a new run cannot use the port. A run that holds checkpoints continues without the
    endpoint; the tracker tries again at each checkpoint.
    """
    tracker = lazy("holdfast.adapters.monitor.prometheus:PrometheusTracker")
    try:
        opened: PrometheusTracker = tracker(section.host, section.port, section.textfile)
    except StateError as error:
        if not layout.holds_checkpoints:
            raise ConfigurationError(str(error)) from None
        opened = tracker(section.host, section.port, section.textfile, opens_at_once=False)
    if opened.address is not None:
        report(f"metrics for Prometheus: {opened.address}")
    return opened


def connection_string(dsn: str, setting: str) -> str:
    """Return ``dsn``, or the content of the environment variable that it names as ``env:NAME``.

    Raises ``ConfigurationError`` if the variable is not set; ``setting`` is the place of ``dsn`` in the settings.
    """
    kind, _, name = dsn.partition(":")
    if kind != "env":
        return dsn
    if not (value := os.environ.get(name)):
        msg = f"{setting} names the environment variable {name}, which is not set: set it to the connection string"
        raise ConfigurationError(msg)
    return value
