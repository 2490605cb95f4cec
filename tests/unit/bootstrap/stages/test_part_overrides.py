"""The parts of a run that a host replaces or wraps."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint

import pytest

from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.adapters.monitor.memory import MemoryMonitor
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.inbox import Inbox
from holdfast.bootstrap import build
from holdfast.bootstrap.adapter_choice.part_overrides import PARTS, PORTS, Overrides, checked_overrides
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.stages.attach.suite_process import asked_trust
from holdfast.bootstrap.stages.choose.stage import choose
from holdfast.bootstrap.stages.open_run.stage import open_run
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.forwarding.state_store import ForwardingStateStore


def settings_of(*more):
    return load_settings([], list(more), {}).settings


def request_of(settings, folder, **overrides):
    checked, _ = checked_overrides(settings, overrides)
    return Request(settings, folder, Ports(settings, checked), print)


def opened(settings, folder, **overrides):
    return open_run(request_of(settings, folder, **overrides), SingleProcessGroup(), Inbox())


def made(request, name):
    """Return the part called ``name`` as the stages make it."""
    settings, ports, alone = request.settings, request.ports, SingleProcessGroup()
    make = {
        "event_bus": lambda: ports.event_bus(settings.event_bus.kind),
        "process_group": lambda: ports.process_group(settings.distributed),
        "state_store": lambda: open_run(request, alone, Inbox()).state_store,
        "data_source": lambda: ports.data_source(settings.data, request.begun),
        "optimizer": lambda: ports.optimizer(choose(request, alone).torch),
        "model_factory": lambda: choose(request, alone).model_factory,
    }
    return make[name]()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"data_sorce": None}, "a run has no part called data_sorce"),
        (
            {"state_store": MemoryStateStore},
            r"is the class MemoryStateStore, not an object: .*MemoryStateStore\(\.\.\.\)",
        ),
        ({"state_store": dict}, "is the class dict, not an object"),
        ({"event_bus": object()}, "event_bus is of the type object, which is no EventBus: it lacks publish, subscribe"),
        ({"state_store": None}, "state_store is of the type NoneType"),
        ({"ledger": lambda inner: inner}, "there is no ledger to wrap"),
        ({"monitors": MemoryMonitor()}, r"monitors is of the type MemoryMonitor, not a list: give build monitors=\["),
        ({"monitors": print}, "monitors is of the type builtin_function_or_method, not a list"),
        ({"added_monitors": [MemoryMonitor]}, r"has the class MemoryMonitor.*added_monitors=\[MemoryMonitor\(...\)\]"),
        (
            {"added_monitors": [MemoryMonitor(), MemoryEventBus()]},
            "the type MemoryEventBus, which is no Monitor: it lacks close, record, rewind",
        ),
    ],
)
def test_what_is_no_part_is_refused(given, sentence):
    """A wrong name, a class, an object without the methods of its port and a wrapper of nothing end build."""
    with pytest.raises(ConfigurationError, match=sentence):
        checked_overrides(settings_of(), given)


@pytest.mark.parametrize("other", [{}, "run.yaml", load_settings([], [], {})])
def test_what_are_no_settings_is_refused(other):
    """A dictionary, the name of a file, or what load_settings returns as a whole is told how settings are made."""
    with pytest.raises(ConfigurationError, match=rf"not an object of the type {type(other).__name__}: .*\.settings"):
        build(other)


@pytest.mark.parametrize(
    "more", [["keep=5"], ["keep_every=10"], ["keep_hours=1"], ["archive.url=/a"], ["encryption.key_from=env:K"]]
)
def test_settings_of_a_store_that_is_replaced_are_refused(more):
    """What only the store of the settings reads has no effect on another one, so it is not accepted with it."""
    settings, store = settings_of(*(f"state_store.{each}" for each in more)), MemoryStateStore(Retention(3))
    name = re.split("[=.]", more[0])[0]
    with pytest.raises(ConfigurationError, match=rf"state_store\.{name} has no effect"):
        checked_overrides(settings, {"state_store": store})
    assert checked_overrides(settings, {"state_store": lambda inner: inner})[0]


def test_settings_that_a_store_of_a_package_is_not_told_are_refused():
    """A store from an entry point gets keep and its options only."""
    settings = settings_of("state_store.kind=mine", "state_store.keep_every=10", "state_store.keep=5")
    with pytest.raises(ConfigurationError, match=r"state_store\.keep_every has no effect, because .*'mine'.*options"):
        checked_overrides(settings, {})


@pytest.mark.parametrize(
    "name", ["event_bus", "process_group", "state_store", "data_source", "optimizer", "model_factory"]
)
def test_a_function_wraps_the_part_of_the_settings(name, tmp_path):
    """It gets the part that the settings choose, once, and the run uses what it returns; a class is such a function."""
    (tmp_path / "a.txt").write_text("text")
    settings = settings_of("data.kind=files", f"data.path={tmp_path}/*.txt", "optimizer.device=cpu")
    inners = []
    part = made(request_of(settings, tmp_path, **{name: lambda inner: inners.append(inner) or inner}), name)
    assert inners == [part]
    assert isinstance(part, PARTS[name])


def test_a_wrapped_store_keeps_its_archive(tmp_path):
    """The store inside a wrapper is at hand too, which alone knows the archive."""
    settings = settings_of(f"state_store.archive.url={tmp_path}/archive", f"run.dir={tmp_path}/run")
    found = opened(settings, tmp_path / "run", state_store=ForwardingStateStore)
    assert found.inner_store is found.state_store.inner
    assert type(found.inner_store).__name__ == "TieredStateStore"
    bare = opened(settings_of(), tmp_path / "run", state_store=MemoryStateStore(Retention(3)))
    assert bare.inner_store is bare.state_store


def test_a_wrapper_that_returns_no_part_is_refused(tmp_path):
    """A function that forgets its return, or returns a class, ends the run with a sentence."""
    request = request_of(settings_of(), tmp_path, event_bus=lambda inner: None)
    with pytest.raises(ConfigurationError, match="the wrapper of event_bus gives an object of the type NoneType"):
        made(request, "event_bus")
    request = request_of(settings_of(), tmp_path, event_bus=lambda inner: inner.__class__)
    with pytest.raises(ConfigurationError, match=r"of event_bus gives the class \w+, not an object"):
        made(request, "event_bus")
    assert made(request_of(settings_of(), tmp_path, event_bus=MemoryEventBus()), "event_bus")


class Marked(ForwardingStateStore):
    """A wrapper from an entry point."""

    def __init__(self, inner, *, mark):
        super().__init__(inner)
        self.mark = mark


@pytest.fixture
def offered(monkeypatch):
    """Offer the wrapper of this module as the entry point ``marked``."""
    point = EntryPoint("marked", f"{__name__}:Marked", "holdfast.wrapper")
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: [point] * (group == point.group)
    )


@pytest.mark.usefixtures("offered")
def test_wrappers_come_from_the_settings(tmp_path):
    """Those of the settings wrap in their order, that of the host is outside, and the store keeps its archive."""
    each = "{{part: state_store, kind: marked, options: {{mark: {}}}}}"
    settings = settings_of(f"wrappers=[{each.format(1)}, {each.format(2)}]", f"state_store.archive.url={tmp_path}/a")
    found = opened(settings, tmp_path, state_store=lambda inner: Marked(inner, mark=3))
    store, marks = found.state_store, []
    while isinstance(store, Marked):
        marks.append(store.mark)
        store = store.inner
    assert marks == [3, 2, 1]
    assert store is found.inner_store
    assert asked_trust(settings) == {"wrappers": "marked,marked"}


@pytest.mark.usefixtures("offered")
def test_a_wrapper_of_the_settings_that_does_not_fit_is_refused(tmp_path):
    """An option that it does not take, a name that no package offers, and a part that the host replaces end the run."""
    wrong = "wrappers=[{part: state_store, kind: marked, options: {colour: red}}]"
    with pytest.raises(ConfigurationError, match="options of wrapper 'marked' do not fit"):
        request_of(settings_of(wrong), tmp_path)
    with pytest.raises(ConfigurationError, match=r"no wrapper is called 'markd' .*did you mean marked"):
        request_of(settings_of("wrappers=[{part: state_store, kind: markd}]"), tmp_path)
    right = settings_of("wrappers=[{part: event_bus, kind: marked, options: {mark: 1}}]")
    with pytest.raises(ConfigurationError, match="'marked' has no effect, because build replaces event_bus"):
        checked_overrides(right, {"event_bus": MemoryEventBus()})
    with pytest.raises(ConfigurationError, match="the wrapper of event_bus gives an object of the type Marked"):
        made(request_of(right, tmp_path), "event_bus")


def test_the_types_name_each_part():
    """Type checkers know the arguments of build: each part and the lists of monitors."""
    assert Overrides.__annotations__.keys() == {*PARTS, "monitors", "added_monitors"}
    assert set(PORTS) <= PARTS.keys()
