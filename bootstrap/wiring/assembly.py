"""The container of one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from dependency_injector import providers

from holdfast.bootstrap.wiring.container import Container
from holdfast.bootstrap.wiring.plugins import build_plugin, check_options, load_plugin
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase


@final
@dataclass(frozen=True, slots=True)
class Around:
    """A wrapper of a part: ``wrap`` gets the part and returns its replacement."""

    wrap: Callable[[Any], Any]


PORTS = (
    "data_source",
    "tokenizer",
    "model_factory",
    "optimizer",
    "state_store",
    "event_bus",
    "process_group",
)
PARTS = (*PORTS, "document_encoder", "resource_probe", "ledger")
_SECTIONS = {"data_source": "data", "model_factory": "model", "process_group": "distributed"}


def assemble(
    settings: TrainSettings,
    directory: Path,
    overrides: Mapping[str, Any],
    *,
    report: Callable[[str], object],
    keep_choice: Callable[[str, str, str], str],
    show: ShowPhase = show_nothing,
) -> Container:
    """Return the container of one run, with outside adapters and with ``overrides`` by provider name.

    An ``Around`` override is called with the part and returns its replacement.
    """
    container = Container(
        settings=providers.Object(settings),
        directory=providers.Object(directory),
        report=providers.Object(report),
        keep_choice=providers.Object(keep_choice),
        show=providers.Object(show),
    )
    sections = dict(settings)
    for port in PORTS:
        section: Any = sections[_SECTIONS.get(port, port)]
        selector: Any = container.providers[port]
        if port not in overrides and section.kind not in selector.providers:
            adapter = load_plugin(port, section.kind, built_in=selector.providers)
            options = {"keep": section.keep, **section.options} if port == "state_store" else section.options
            check_options(port, section.kind, adapter, **options)
            new = partial(build_plugin, port, section.kind, adapter)
            selector.set_providers(**selector.providers, **{section.kind: providers.Singleton(new, **options)})
    for name, replacement in overrides.items():
        provider: Any = container.providers[name]
        if isinstance(replacement, Around):
            provider.override(providers.Singleton(replacement.wrap, _same(provider)))
        else:
            provider.override(providers.Object(replacement))
    return container


def _same(provider: Any) -> Any:
    """Return a provider with the same value as ``provider``, without its override."""
    if isinstance(provider, providers.Selector):
        return providers.Selector(provider.selector, **provider.providers)
    return providers.Singleton(provider.provides, *provider.args, **provider.kwargs)


def brings_model(overrides: Mapping[str, Any]) -> bool:
    """Return whether the host program replaces the model or its optimizer, whose memory cannot be estimated."""
    return bool({"model_factory", "optimizer"} & overrides.keys())
