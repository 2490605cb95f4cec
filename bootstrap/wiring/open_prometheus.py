"""Opens the endpoint of a run for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.adapters.monitor.prometheus import PrometheusTracker
    from holdfast.bootstrap.run_folder.layout import RunLayout
    from holdfast.configs.sections.monitors import PrometheusMonitorSettings


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
