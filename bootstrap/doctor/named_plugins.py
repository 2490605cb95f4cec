"""The adapters of other packages that settings name, and a check that their entry points are installed."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.bootstrap.doctor.finding import Finding, bad, good
from holdfast.bootstrap.wiring.text_transforms import TRANSFORMS
from holdfast.configs.sections.base import PluginSettings
from holdfast.configs.sections.data import PluginDataSettings
from holdfast.configs.sections.optimizer import PluginOptimizerSettings
from holdfast.configs.sections.state_store import PluginStateStoreSettings
from holdfast.domain.built_in import ATTENTION, LOSSES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from holdfast.configs.settings import TrainSettings

_PLUGINS = (PluginSettings, PluginDataSettings, PluginOptimizerSettings, PluginStateStoreSettings)
_GROUPS = {
    "data": "data_source",
    "tokenizer": "tokenizer",
    "model": "model_factory",
    "optimizer": "optimizer",
    "state_store": "state_store",
    "ledger": "ledger",
    "event_bus": "event_bus",
    "distributed": "process_group",
}
"""The group of entry points for each section with a kind."""


def installed_names(group: str) -> Collection[str]:
    """Return the names of the installed entry points of ``group``."""
    return {point.name for point in entry_points(group=f"holdfast.{group}")}


def check_plugins(
    settings: TrainSettings, installed: Callable[[str], Collection[str]] = installed_names
) -> Iterator[Finding]:
    """Yield a finding for each adapter of another package that ``settings`` name; none is imported."""
    for setting, group, name in dict.fromkeys(_named(settings)):
        if name in installed(group):
            yield good(setting, f"{name} is installed")
        else:
            remedy = f"install the package that offers it in the environment of this Python, or correct {setting}"
            yield bad(setting, f"no installed package has the entry point {name} of holdfast.{group}", remedy)
    if settings.model.loss == "liger" and find_spec("liger_kernel") is None:
        yield bad("model.loss", "liger needs the package liger-kernel", "run pip install liger-kernel")


def _named(settings: TrainSettings) -> Iterator[tuple[str, str, str]]:
    sections = {name: section for name, section in settings if name in _GROUPS}
    for name, section in sections.items():
        if isinstance(section, _PLUGINS):
            yield f"{name}.kind", _GROUPS[name], section.kind
    for monitor in settings.monitors:
        if isinstance(monitor, PluginSettings):
            yield "monitors", "monitor", monitor.kind
    yield from (("handlers", "handler", handler.kind) for handler in settings.handlers)
    yield from (("wrappers", "wrapper", wrapper.kind) for wrapper in settings.wrappers)
    transforms = (transform.kind for transform in settings.data.transforms)
    yield from (("data.transforms", "transform", kind) for kind in transforms if kind not in TRANSFORMS)
    if settings.model.attention not in ("auto", *ATTENTION):
        yield "model.attention", "attention", settings.model.attention
    if settings.model.loss not in LOSSES:
        yield "model.loss", "loss", settings.model.loss
