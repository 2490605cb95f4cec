"""The first stages for a program that does not train: in one process, without a run folder."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.stages.build.stage import bare_model, wrap_model
from holdfast.bootstrap.stages.choose.stage import choose, choose_sizes
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.prepare.stage import open_readers, prepare
from holdfast.bootstrap.stages.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.bootstrap.stages.choose.stage import Chosen
    from holdfast.bootstrap.stages.prepare.stage import PreparedRows
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.tokenizer import Tokenizer


def choose_alone(
    settings: TrainSettings,
    parts: Mapping[str, object] = MappingProxyType({}),
    report: Callable[[str], object] = lambda _: None,
) -> Chosen:
    """Return what a new run of ``settings`` with ``parts`` of its host would choose."""
    request = Request(settings, settings.run.directory, Ports(settings, parts), report)
    return choose(choose_sizes(request), SingleProcessGroup())


def prepare_alone(chosen: Chosen) -> PreparedRows:
    """Return the rows that a new run would train on; missing tokens are made."""
    found = find_data(chosen.request)
    return prepare(open_readers(identify(found, found.data)), chosen.share)


def build_alone(chosen: Chosen, tokenizer: Tokenizer) -> Built:
    """Return the model of a new run with its optimizer."""
    optimizer = chosen.request.ports.optimizer(chosen.torch)
    return wrap_model(chosen, optimizer, bare_model(chosen, tokenizer, optimizer))
