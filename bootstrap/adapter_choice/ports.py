"""The parts of one run that are adapters of ports: those of the settings, replaced or wrapped by its host."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

from holdfast.adapters.shared.files.file_operations import temporary_folder
from holdfast.bootstrap.adapter_choice.part_overrides import Around, replaced_names, wrapped
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.adapter_choice.table import adapters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.bootstrap.adapter_choice.state_stores import StoreRequest
    from holdfast.bootstrap.adapter_choice.tokenizers import TokenizerRequest
    from holdfast.bootstrap.adapter_choice.torch_adapters import TorchRequest
    from holdfast.bootstrap.run_folder.record_file import Begun
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.distributed import DistributedSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.model_factory import ModelFactory
    from holdfast.ports.optimizer import Optimizer
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import StateStore
    from holdfast.ports.tokenizer import Tokenizer

T = TypeVar("T")


@final
class Ports:
    """Makes each part once it is needed: the object that the host gave, or that of the settings within its wrappers.

    ``parts`` of the host are objects and ``Around``s by name; the wrappers of the settings are inside those. Raises
    ``ConfigurationError`` for an adapter that nobody installed, and if no folder for temporary files can be written,
    which the import of torch needs.
    """

    def __init__(self, settings: TrainSettings, parts: Mapping[str, object]) -> None:
        temporary_folder()
        replaced = replaced_names(parts)
        self._given = {name: parts[name] for name in replaced}
        self._wraps = _wraps(settings, parts)
        self._table = adapters_of(settings, self._given)

    def part(self, name: str, make: Callable[[], T]) -> T:
        """Return the part called ``name``, which ``make`` makes unless the host replaces it, within its wrappers."""
        made = self._given[name] if name in self._given else make()
        for wrap in self._wraps.get(name, ()):
            made = wrap(made)
        return cast("T", made)

    def event_bus(self, kind: str) -> EventBus:
        """Return the bus of the run."""
        make: Callable[[], EventBus] = partial(self._make, "event_bus", kind)
        return self.part("event_bus", make)

    def process_group(self, section: DistributedSettings) -> ProcessGroup:
        """Return the group of the processes of the run."""
        make: Callable[[], ProcessGroup] = partial(self._make, "process_group", section.kind, section)
        return self.part("process_group", make)

    def state_store(self, request: StoreRequest) -> tuple[StateStore, StateStore]:
        """Return the store of checkpoints, and the same one without its wrappers."""
        inner: list[StateStore] = []

        def make() -> StateStore:
            inner.append(self._make("state_store", request.section.kind, request))
            return inner[0]

        store = self.part("state_store", make)
        return store, inner[0] if inner else store

    def data_source(self, data: FeedSettings, begun: Begun, fields: Sequence[str] = ()) -> DataSource:
        """Return the source of the documents, which carry ``fields``, read by the rules that the run began with."""
        arguments = (data, begun.places, begun.rules["files"], fields, data.task)
        make: Callable[[], DataSource] = partial(self._make, "data_source", data.kind, *arguments)
        return self.part("data_source", make)

    def tokenizer(self, request: TokenizerRequest) -> Tokenizer:
        """Return the tokenizer, trained if need be."""
        make: Callable[[], Tokenizer] = partial(self._make, "tokenizer", request.settings.tokenizer.kind, request)
        return self.part("tokenizer", make)

    def model_factory(self, request: TorchRequest) -> ModelFactory[object]:
        """Return what builds the model."""
        kind = request.settings.model.kind
        make: Callable[[], ModelFactory[object]] = partial(self._make, "model_factory", kind, request)
        return self.part("model_factory", make)

    def optimizer(self, request: TorchRequest) -> Optimizer[object]:
        """Return what trains the model."""
        kind = request.settings.optimizer.kind
        make: Callable[[], Optimizer[object]] = partial(self._make, "optimizer", kind, request)
        return self.part("optimizer", make)

    def _make(self, port: str, kind: str, *arguments: object) -> Any:
        return self._table.providers[port](kind, *arguments)


def _wraps(settings: TrainSettings, parts: Mapping[str, object]) -> Mapping[str, Sequence[Callable[[object], object]]]:
    """Return the wrappers of each part, the innermost first.

    A part that is replaced is not wrapped: it is that of the host, or was wrapped before.
    """
    replaced = replaced_names(parts)
    chains: dict[str, list[Callable[[object], object]]] = {}
    for section in settings.wrappers:
        if section.part not in replaced:
            wrapper = load_plugin("wrapper", section.kind)
            check_options("wrapper", section.kind, wrapper, None, **section.options)
            make = partial(build_plugin, "wrapper", section.kind, wrapper)
            chains.setdefault(section.part, []).append(partial(wrapped, section.part, make, **section.options))
    for name, part in parts.items():
        if isinstance(part, Around):
            chains.setdefault(name, []).append(part.wrap)
    return chains
