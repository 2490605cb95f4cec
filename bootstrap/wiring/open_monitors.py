"""Opens the monitors of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.plugins import build_plugin, check_options, load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from holdfast.bootstrap.wiring.screen import Screen
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.monitor import Monitor


def open_monitors(
    overrides: Mapping[str, Any], settings: TrainSettings, screen: Screen, stack: ExitStack
) -> list[Monitor]:
    """Return the monitors of a run, which are closed when ``stack`` ends; the console is that of ``screen``."""
    monitors = build_monitors(overrides, settings.monitors, settings.run.directory, screen.console)
    for monitor in monitors:
        stack.callback(close_monitor, monitor, screen.say)
    return monitors


def build_monitors(
    overrides: Mapping[str, Any], sections: Iterable[Any], folder: Path, console: Monitor | None
) -> list[Monitor]:
    """Return one monitor a section, in order, or those that ``overrides`` names; ``console`` is there already."""
    if "monitors" in overrides:
        return list(overrides["monitors"])
    layout = RunLayout(folder)
    built_in: dict[str, Callable[[], Any]] = {
        "console": lambda: console,
        "jsonl": lambda: lazy("holdfast.adapters.monitor.jsonl:JsonlMonitor")(layout.metrics),
        "tensorboard": lambda: lazy("holdfast.adapters.monitor.tensorboard:TensorboardMonitor")(
            RunLayout(folder).tensorboard
        ),
        "structlog": lazy("holdfast.adapters.monitor.structlog:StructlogMonitor"),
    }
    monitors: list[Monitor] = []
    for section in sections:
        if section.kind in built_in:
            monitor = built_in[section.kind]()
        else:
            plugin = load_plugin("monitor", section.kind, built_in=built_in)
            check_options("monitor", section.kind, plugin, **section.options)
            monitor = build_plugin("monitor", section.kind, plugin, **section.options)
        monitors.append(monitor)
    return monitors


def close_monitor(monitor: Monitor, say: Callable[[str], object]) -> None:
    """Close ``monitor``; what goes wrong is said, as the run has ended."""
    try:
        monitor.close()
    except Exception as error:  # noqa: BLE001  the run has ended, and how it ended is what its caller is to hear
        say(f"{type(monitor).__qualname__} failed to close: {type(error).__name__}: {error}")
