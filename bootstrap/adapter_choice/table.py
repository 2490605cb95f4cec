"""The table of the adapters of each port, by the kinds of the settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from dependency_injector import containers, providers

from holdfast.bootstrap.adapter_choice import data_sources as sources
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.adapter_choice.process_group import join_group, open_alone, open_group
from holdfast.bootstrap.adapter_choice.state_stores import disk_store, memory_store
from holdfast.bootstrap.adapter_choice.tokenizers import load_tokenizer, train_tokenizer
from holdfast.bootstrap.adapter_choice.torch_adapters import (
    accelerate_optimizer,
    decoder_factory,
    deepspeed_optimizer,
    huggingface_factory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.configs.settings import TrainSettings

SECTIONS = {
    "data_source": "data",
    "tokenizer": "tokenizer",
    "model_factory": "model",
    "optimizer": "optimizer",
    "state_store": "state_store",
    "event_bus": "event_bus",
    "process_group": "distributed",
}
"""The section of the settings that names the kind of each port's adapter."""


Kinds = providers.FactoryAggregate[object]


class AdapterTable(containers.DeclarativeContainer):
    """What makes each kind of adapter; it is imported when it is made.

    All kinds of a port take the same arguments, those of the functions of ``Ports``; adapters from other packages take
    the options of their settings instead.
    """

    event_bus: Kinds = providers.FactoryAggregate(
        blinker=providers.Factory(lazy("holdfast.adapters.event_bus.blinker:BlinkerEventBus")),
        memory=providers.Factory(lazy("holdfast.adapters.event_bus.blinker:BlinkerEventBus")),
    )
    process_group: Kinds = providers.FactoryAggregate(
        auto=providers.Factory(open_group),
        ray=providers.Factory(open_group),
        single=providers.Factory(open_alone),
        torch=providers.Factory(join_group),
    )
    state_store: Kinds = providers.FactoryAggregate(
        disk=providers.Factory(disk_store), memory=providers.Factory(memory_store)
    )
    data_source: Kinds = providers.FactoryAggregate(
        python_library=providers.Factory(sources.python_library),
        files=providers.Factory(sources.open_files),
        huggingface=providers.Factory(sources.hub_dataset),
        mixture=providers.Factory(sources.mix),
        tokens=providers.Factory(sources.no_text),
    )
    tokenizer: Kinds = providers.FactoryAggregate(
        train=providers.Factory(train_tokenizer), huggingface=providers.Factory(load_tokenizer)
    )
    model_factory: Kinds = providers.FactoryAggregate(
        huggingface=providers.Factory(huggingface_factory), decoder=providers.Factory(decoder_factory)
    )
    optimizer: Kinds = providers.FactoryAggregate(
        accelerate=providers.Factory(accelerate_optimizer), deepspeed=providers.Factory(deepspeed_optimizer)
    )


def adapters_of(settings: TrainSettings, replaced: Mapping[str, object]) -> AdapterTable:
    """Return the table with the adapters from other packages that ``settings`` name, unless they are ``replaced``.

    Raises ``ConfigurationError`` if there is none of that name, or if its options do not fit.
    """
    table, sections = AdapterTable(), dict(settings)
    for port, name in SECTIONS.items():
        section, built_in = sections[name], cast("Kinds", table.providers[port])
        if port in replaced or section.kind in built_in.factories:
            continue
        adapter = load_plugin(port, section.kind, built_in=built_in.factories)
        options = {"keep": section.keep, **section.options} if port == "state_store" else section.options
        check_options(port, section.kind, adapter, **options)
        new = providers.Factory(_built, partial(build_plugin, port, section.kind, adapter, **options))
        built_in.set_factories({**built_in.factories, section.kind: new})
    return table


def _built(build: Callable[[], object], *_arguments: object) -> object:
    return build()
