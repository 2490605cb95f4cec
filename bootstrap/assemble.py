"""The container of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from bootstrap.container import Container
from bootstrap.plugins import check_options, load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from configs.settings import TrainSettings

PORTS = (
    "data_source",
    "tokenizer",
    "model_factory",
    "optimizer",
    "state_store",
    "event_bus",
    "process_group",
)
_SECTIONS = {"data_source": "data", "model_factory": "model", "process_group": "distributed"}


def assemble(
    settings: TrainSettings,
    directory: Path,
    overrides: Mapping[str, Any],
    *,
    say: Callable[[str], object],
    decide: Callable[[str, str, str], str],
) -> Container:
    """Return the container of one run: outside adapters added, ``overrides`` (by provider name) put in their place."""
    container = Container(
        settings=providers.Object(settings),
        directory=providers.Object(directory),
        say=providers.Object(say),
        decide=providers.Object(decide),
    )
    for port in PORTS:
        section = getattr(settings, _SECTIONS.get(port, port))
        selector = getattr(container, port)
        if port not in overrides and section.kind not in selector.providers:
            adapter = load_plugin(port, section.kind, built_in=selector.providers)
            options = {"keep": section.keep, **section.options} if port == "state_store" else section.options
            check_options(port, section.kind, adapter, **options)
            selector.set_providers(**selector.providers, **{section.kind: providers.Singleton(adapter, **options)})
    for name, replacement in overrides.items():
        getattr(container, name).override(providers.Object(replacement))
    return container
