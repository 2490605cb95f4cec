"""The parts of a run that a host program replaces or wraps."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static, signature
from typing import TYPE_CHECKING, Any, TypedDict, final

from holdfast.bootstrap.adapter_choice.encryption_keys import refuse_to_train
from holdfast.bootstrap.adapter_choice.plugins import has_methods
from holdfast.configs.sections.state_store import DiskStateStoreSettings, PluginStateStoreSettings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.data_source import DataSource
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.event_bus import EventBus
from holdfast.ports.ledger import Ledger
from holdfast.ports.model_factory import ModelFactory
from holdfast.ports.monitor import Monitor
from holdfast.ports.optimizer import Optimizer
from holdfast.ports.process_group import ProcessGroup
from holdfast.ports.resource_probe import ResourceProbe
from holdfast.ports.state_store import StateStore
from holdfast.ports.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class Overrides(TypedDict, total=False):
    """The parts of a run that a host may replace by an object, or wrap by a function of the part in the settings.

    ``monitors`` replace those of the settings, ``added_monitors`` come beside them.
    """

    data_source: DataSource | Callable[[DataSource], DataSource]
    tokenizer: Tokenizer | Callable[[Tokenizer], Tokenizer]
    model_factory: ModelFactory[Any] | Callable[[ModelFactory[Any]], ModelFactory[Any]]
    optimizer: Optimizer[Any] | Callable[[Optimizer[Any]], Optimizer[Any]]
    state_store: StateStore | Callable[[StateStore], StateStore]
    event_bus: EventBus | Callable[[EventBus], EventBus]
    process_group: ProcessGroup | Callable[[ProcessGroup], ProcessGroup]
    document_encoder: DocumentEncoder | Callable[[DocumentEncoder], DocumentEncoder]
    resource_probe: ResourceProbe | Callable[[ResourceProbe], ResourceProbe]
    ledger: Ledger | Callable[[Ledger], Ledger]
    monitors: Sequence[Monitor]
    added_monitors: Sequence[Monitor]


class RunOptions(Overrides, total=False):
    """The arguments of ``build`` beside the settings."""

    report: Callable[[str], object] | None
    accept_changed_data: bool
    fresh: bool
    is_quiet: bool


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
PARTS: Mapping[str, type] = {
    "data_source": DataSource,
    "tokenizer": Tokenizer,
    "model_factory": ModelFactory,
    "optimizer": Optimizer,
    "state_store": StateStore,
    "event_bus": EventBus,
    "process_group": ProcessGroup,
    "document_encoder": DocumentEncoder,
    "resource_probe": ResourceProbe,
    "ledger": Ledger,
}
MONITORS = ("monitors", "added_monitors")
"""The overrides of a run with lists of monitors."""

_INNER = "inner"
"""The first argument of a class that wraps a part, as those of ``ports/forwarding``."""
_READ_BY_BUILT_IN = ("keep", "keep_every", "keep_hours", "encryption", "archive", "disk_budget")
"""Settings that only the store of the settings reads."""


def checked_overrides(
    settings: TrainSettings, overrides: dict[str, Any], report: Callable[[str], object] | None = None
) -> tuple[dict[str, Any], Callable[[str], object] | None]:
    """Return ``overrides`` with each wrapper as an ``Around``, and ``report`` or what came under its former name.

    Raises ``ConfigurationError`` for what are no settings, for the name of no part, for a class or another object that
    is no adapter of its port, for settings of a state store that a replaced one does not read, and if the roles in the
    settings do not permit training.
    """
    if not isinstance(settings, TrainSettings):
        msg = (
            f"build takes TrainSettings, not an object of the type {type(settings).__name__}: "
            "load_settings(...).settings makes them of files and words"
        )
        raise ConfigurationError(msg)
    if "say" in overrides:
        warnings.warn("the argument say of build is now called report", DeprecationWarning, stacklevel=3)
        report = overrides.pop("say")
    if strange := sorted(overrides.keys() - {*PARTS, *MONITORS}):
        msg = f"a run has no part called {strange[0]}: replace one of {', '.join(PARTS)} or monitors"
        raise ConfigurationError(msg)
    if settings.ledger.kind == "none" and _is_wrapper("ledger", overrides.get("ledger")):
        msg = "there is no ledger to wrap: set ledger.kind, or give build a ledger"
        raise ConfigurationError(msg)
    found: dict[str, Any] = {
        name: _checked_monitors(name, part) if name in MONITORS else _checked(name, part)
        for name, part in overrides.items()
    }
    for section in settings.wrappers:
        if section.part in replaced_names(found):
            msg = f"the wrapper '{section.kind}' has no effect, because build replaces {section.part}: remove it"
            raise ConfigurationError(msg)
    _refuse_without_effect(settings, is_replaced="state_store" in replaced_names(found))
    if "state_store" not in replaced_names(found):
        refuse_to_train(settings)
    return found, report


def replaced_names(overrides: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the parts that are replaced, not wrapped."""
    return {name for name, part in overrides.items() if not isinstance(part, Around)}


def brings_model(overrides: Mapping[str, Any]) -> bool:
    """Return whether the host program replaces the model or its optimizer, whose memory cannot be estimated."""
    return bool({"model_factory", "optimizer"} & overrides.keys())


def _is_wrapper(name: str, part: Any) -> bool:
    if isinstance(part, type):
        with suppress(ValueError):  # a class of Python itself may have no signature
            return next(iter(signature(part).parameters), None) == _INNER
        return False
    return isinstance(part, Around) or (callable(part) and not _fits(name, part))


def _fits(name: str, part: Any) -> bool:
    """Return whether ``part`` has the methods of the port called ``name``."""
    port: Any = PARTS[name]
    return isinstance(part, port) or has_methods(part, *_methods_of(port))


def _methods_of(port: Any) -> list[str]:
    return [name for name in port.__abstractmethods__ if not isinstance(getattr_static(port, name), property)]


def _checked(name: str, part: Any) -> Any:
    if isinstance(part, Around):
        return part
    if isinstance(part, type) and not _is_wrapper(name, part):
        made = part.__name__
        msg = (
            f"{name} is the class {made}, not an object: give build {name}={made}(...), or {name}=lambda inner: "
            f"{made}(inner) to wrap the part of the settings"
        )
        raise ConfigurationError(msg)
    if _is_wrapper(name, part):
        return Around(partial(wrapped, name, part))
    if not _fits(name, part):
        port = PARTS[name]
        msg = f"{name} is of the type {type(part).__name__}, which is no {port.__name__}: {_lacks(port, part)}"
        raise ConfigurationError(msg)
    return part


def _checked_monitors(name: str, found: Any) -> Sequence[Monitor]:
    if not isinstance(found, Sequence) or isinstance(found, str):
        msg = f"{name} is of the type {type(found).__name__}, not a list: give build {name}=[...]"
        raise ConfigurationError(msg)
    for each in found:
        if isinstance(each, type):
            msg = f"{name} has the class {each.__name__}, not an object: give build {name}=[{each.__name__}(...)]"
            raise ConfigurationError(msg)
        if not isinstance(each, Monitor) and not has_methods(each, *_methods_of(Monitor)):
            kind = type(each).__name__
            msg = f"{name} has an object of the type {kind}, which is no Monitor: {_lacks(Monitor, each)}"
            raise ConfigurationError(msg)
    return found


def wrapped(name: str, wrap: Callable[..., Any], inner: Any, **options: Any) -> Any:
    """Return ``inner``, the part called ``name``, as ``wrap`` wraps it.

    Raises ``ConfigurationError`` if that is no such part.
    """
    part = wrap(inner, **options)
    if isinstance(part, type):
        msg = f"the wrapper of {name} gives the class {part.__name__}, not an object: return {part.__name__}(...)"
        raise ConfigurationError(msg)
    if not _fits(name, part):
        msg = f"the wrapper of {name} gives an object of the type {type(part).__name__}: {_lacks(PARTS[name], part)}"
        raise ConfigurationError(msg)
    return part


def _lacks(port: type, part: Any) -> str:
    missing = [method for method in sorted(_methods_of(port)) if not has_methods(part, method)]
    return f"it lacks {', '.join(missing)}"


def _refuse_without_effect(settings: TrainSettings, *, is_replaced: bool) -> None:
    """Raise ``ConfigurationError`` if the settings ask of a state store what an outside one is not told."""
    section, unread = settings.state_store, tuple[str, ...]()
    if is_replaced:
        unread, why = _READ_BY_BUILT_IN, "the state store of build replaces that of the settings"
        remedy = "give it to your store, or wrap the store of the settings: state_store=lambda inner: ..."
    elif isinstance(section, PluginStateStoreSettings):
        unread, why = ("keep_every", "keep_hours"), f"the state store '{section.kind}' is not told it"
        remedy = "set it under state_store.options if the store has such an argument"
    else:
        return
    for name in unread:
        value = dict(section).get(name)
        if value not in (None, DiskStateStoreSettings.model_fields[name].default):
            msg = f"state_store.{name} has no effect, because {why}: remove it, and {remedy}"
            raise ConfigurationError(msg)
