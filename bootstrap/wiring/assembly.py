"""The container of one run."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from holdfast.adapters.shared.files.file_operations import temporary_folder
from holdfast.bootstrap.wiring.container import Container
from holdfast.bootstrap.wiring.part_overrides import PORTS, Around, replaced_names, wrapped
from holdfast.bootstrap.wiring.plugins import build_plugin, check_options, load_plugin
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase


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

    An ``Around`` override is called with the part and returns its replacement. Raises ``ConfigurationError`` if no
    folder for temporary files can be written, which the import of torch needs.
    """
    temporary_folder()
    container = Container(
        settings=providers.Object(settings),
        directory=providers.Object(directory),
        report=providers.Object(report),
        keep_choice=providers.Object(keep_choice),
        show=providers.Object(show),
    )
    sections, replaced = dict(settings), replaced_names(overrides)
    for port in PORTS:
        section: Any = sections[_SECTIONS.get(port, port)]
        selector: Any = container.providers[port]
        if port not in replaced and section.kind not in selector.providers:
            adapter = load_plugin(port, section.kind, built_in=selector.providers)
            options = {"keep": section.keep, **section.options} if port == "state_store" else section.options
            check_options(port, section.kind, adapter, **options)
            new = partial(build_plugin, port, section.kind, adapter)
            selector.set_providers(**selector.providers, **{section.kind: providers.Singleton(new, **options)})
    _override(container.providers, _with_wrappers(settings, overrides))
    return container


def _override(parts: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Replace and wrap ``parts``, the providers by name."""
    given = overrides.get("state_store")
    is_inner = given is None or isinstance(given, Around)
    parts["inner_store"].override(_same(parts["state_store"]) if is_inner else providers.Object(given))
    for name, replacement in overrides.items():
        provider = parts[name]
        if isinstance(replacement, Around):
            provider.override(providers.Singleton(replacement.wrap, _same(provider)))
        else:
            provider.override(providers.Object(replacement))


def _with_wrappers(settings: TrainSettings, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``overrides`` with the wrappers of the settings, which are inside those of the host program.

    A part that is replaced is not wrapped: it is that of the host, or was wrapped before.
    """
    replaced = replaced_names(overrides)
    chains: dict[str, list[Callable[[Any], Any]]] = {}
    for section in settings.wrappers:
        if section.part not in replaced:
            wrapper = load_plugin("wrapper", section.kind)
            check_options("wrapper", section.kind, wrapper, None, **section.options)
            make = partial(build_plugin, "wrapper", section.kind, wrapper)
            chains.setdefault(section.part, []).append(partial(wrapped, section.part, make, **section.options))
    for part, chain in chains.items():
        if part in overrides:
            chain.append(overrides[part].wrap)
    return {**overrides, **{part: Around(partial(_wrapped_by, chain)) for part, chain in chains.items()}}


def _wrapped_by(chain: Sequence[Callable[[Any], Any]], part: Any) -> Any:
    return reduce(lambda inner, wrap: wrap(inner), chain, part)


def _same(provider: Any) -> Any:
    """Return a provider with the same value as ``provider``, without its override."""
    if isinstance(provider, providers.Selector):
        return providers.Selector(provider.selector, **provider.providers)
    return providers.Singleton(provider.provides, *provider.args, **provider.kwargs)
