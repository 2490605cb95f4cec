"""Exports metrics to Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final
from weakref import WeakKeyDictionary

from typing_extensions import override

from holdfast.adapters.monitor.prometheus_figures import ExportedFigures
from holdfast.adapters.shared.files.atomic_replace import replace_file
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.sql.storable_text import storable, storable_name
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import EndState, EventTracker, NoteKind, RunDescription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from holdfast.adapters.monitor.metrics_server import MetricsServer

_SECONDS_BETWEEN_FILES = 5.0
_OF_HOSTS: WeakKeyDictionary[CollectorRegistry, FigureCollector] = WeakKeyDictionary()
"""The figures that are offered by registries of the programs that embed runs."""


@final
class PrometheusTracker(EventTracker):
    """Offers the figures of the last step by HTTP, to a server of Prometheus, and as a file, to its node_exporter.

    ``port`` is the port of the endpoint at ``host``: 0 is any free port, None is no endpoint. ``textfile`` is replaced
    atomically at a record that comes five seconds after the last one, and at ``flush``, ``finish`` and ``close``; it
    stays after the end of the run, with the state of the run. Prometheus keeps the earlier figures: ``rewind`` removes
    only those that are offered. Texts are not offered, but events are counted by kind. A ``registry`` of the program
    that embeds the run, such as ``prometheus_client.REGISTRY``, offers the figures too, also after ``close``, until
    another tracker is made with it. ``clock`` returns Unix seconds.

    With ``opens_at_once`` the constructor raises ``StateError`` if the port cannot be used, else ``flush`` does, after
    a new attempt. Raises ``ConfigurationError`` without the extra ``prometheus``, and ``StateError`` if the disk
    refuses the file.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        textfile: Path | None = None,
        *,
        registry: CollectorRegistry | None = None,
        opens_at_once: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        try:
            from prometheus_client import CollectorRegistry as Registry
        except ImportError as error:
            msg = 'the monitor "prometheus" needs another package: pip install "holdfast-lm[prometheus]"'
            raise ConfigurationError(msg) from error
        self._figures = ExportedFigures()
        self._labels: dict[str, str] = {}
        self._registry = Registry(support_collectors_without_names=True)  # else no name can be asked for
        collector = FigureCollector(self._figures, self._labels)
        self._registry.register(collector)
        if registry is not None:
            if (former := _OF_HOSTS.get(registry)) is not None:
                registry.unregister(former)
            registry.register(collector)
            _OF_HOSTS[registry] = collector
        self._host, self._port, self._textfile = host, port, textfile
        self._clock = clock
        self._server: MetricsServer | None = None
        self._written = 0.0
        self._has_begun = self._closed = False
        if opens_at_once:
            self._open()

    @property
    def address(self) -> str | None:
        """Return the URL of the endpoint, None without one."""
        if self._server is None:
            return None
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}/metrics"

    @override
    def begin(self, run: RunDescription) -> None:
        self._labels |= {"run": storable(run.name), "run_id": storable(run.run_id), "rank": "0"}
        self._figures.begin(run.num_ranks, self._clock())
        self._has_begun = True

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._closed:
            self._figures.record(step, metrics, self._clock())
            if self._clock() - self._written >= _SECONDS_BETWEEN_FILES:
                self._write()

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        pass

    @override
    def event(self, step: int, name: str, text: str) -> None:
        self._figures.event(name)

    @override
    def rewind(self, step: int) -> None:
        self._figures.rewind(step)

    @override
    def flush(self) -> None:
        self._write()
        self._open()

    @override
    def finish(self, state: EndState) -> None:
        self._figures.finish(state)
        self._write()

    @override
    def close(self) -> None:
        is_first, self._closed = not self._closed, True
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if is_first:
            self._write()

    def _open(self) -> None:
        """Open the endpoint, if there is to be one; raises ``StateError`` if the port cannot be used."""
        if self._server is not None or self._port is None or self._closed:
            return
        from holdfast.adapters.monitor.metrics_server import MetricsServer

        try:
            self._server = MetricsServer(self._host, self._port, self._registry)
        except OSError as error:
            msg = (
                f"the port {self._port} of {self._host} cannot be used for Prometheus "
                f"({(error.strerror or str(error)).lower()}): end the program that has it, or give the monitor "
                '"prometheus" another port, 0 for any free one'
            )
            raise StateError(msg) from error

    def _write(self) -> None:
        """Replace the text file, if there is one; raises ``StateError`` if the disk refuses it."""
        from prometheus_client import generate_latest

        if self._textfile is None or not self._has_begun:
            return
        self._written = self._clock()
        try:
            replace_file(self._textfile, generate_latest(self._registry), is_durable=False)
        except OSError as error:
            msg = f"the figures for Prometheus cannot be written to {self._textfile}, {explain(error)}"
            raise StateError(msg) from error


class FigureCollector:
    """Converts ``figures`` to the metrics of the library, each sample with ``labels`` too."""

    def __init__(self, figures: ExportedFigures, labels: Mapping[str, str]) -> None:
        self._figures = figures
        self._labels = labels

    def describe(self) -> Sequence[Metric]:
        """Return no names, as they are known with the first figures only."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for family in self._figures.families():
            own = sorted({name for labels, _ in family.samples for name in labels})
            kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=[*self._labels, *own])
            for labels, value in family.samples:
                metric.add_metric(
                    [*self._labels.values(), *(storable_name(labels.get(name, "")) for name in own)], value
                )
            yield metric
