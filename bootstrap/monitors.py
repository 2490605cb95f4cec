"""Which monitors a run has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bootstrap.lazy import lazy
from bootstrap.plugins import check_options, load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ports.monitor import Monitor


def build_monitors(
    overrides: Mapping[str, Any], sections: Iterable[Any], folder: Path, console: Monitor | None
) -> list[Monitor]:
    """Return one monitor a section, in order, or those that ``overrides`` names; ``console`` is there already."""
    if "monitors" in overrides:
        return list(overrides["monitors"])
    built_in: dict[str, Callable[[], Any]] = {
        "console": lambda: console,
        "jsonl": lambda: lazy("adapters.monitor.jsonl:JsonlMonitor")(folder / "metrics.jsonl"),
        "tensorboard": lambda: lazy("adapters.monitor.tensorboard:TensorboardMonitor")(folder / "tensorboard"),
        "structlog": lazy("adapters.monitor.structlog:StructlogMonitor"),
    }
    monitors: list[Monitor] = []
    for section in sections:
        if section.kind in built_in:
            monitor = built_in[section.kind]()
        else:
            plugin = load_plugin("monitor", section.kind, built_in=built_in)
            check_options("monitor", section.kind, plugin, **section.options)
            monitor = plugin(**section.options)
        monitors.append(monitor)
    return monitors


def close_monitor(monitor: Monitor, say: Callable[[str], object]) -> None:
    """Close ``monitor``; what goes wrong is said, as the run has ended."""
    try:
        monitor.close()
    except Exception as error:  # noqa: BLE001  the run has ended, and how it ended is what its caller is to hear
        say(f"{type(monitor).__qualname__} failed to close: {type(error).__name__}: {error}")
