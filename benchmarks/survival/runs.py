"""Runs that something happens to, with the resource manager and without it."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from benchmarks.survival.machine import Hog, SlowDisk, SmallMachine
from holdfast.adapters.data_source.python_library import PythonLibraryDataSource
from holdfast.adapters.resource_probe.memory import MemoryResourceProbe
from holdfast.bootstrap.run import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import ResourcesAdjusted, RunStarted, StepCompleted
from holdfast.domain.resources.balance_policy import Knob
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_TEXTS, _CHARACTERS = 120, 6000


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a run is: ``quiet`` steps, ``disturbed`` ones, ``after`` more; and the folder and settings of all.

    Beside a hog a run has ``room`` bytes more than it needs.
    """

    quiet: int
    disturbed: int
    after: int
    folder: Path
    overrides: Sequence[str] = ()
    room: int = 2 << 30

    @property
    def steps(self) -> int:
        """Return how many steps there are."""
        return self.quiet + self.disturbed + self.after


@dataclass(slots=True)
class Record:
    """What a run did: how long each step took, and how long it was in the engine, and what was adjusted."""

    durations: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    adjusted: list[ResourcesAdjusted] = field(default_factory=list)
    num_tokens: int = 0

    def seconds(self, begin: int, end: int) -> list[float]:
        """Return what each step took, from behind step ``begin`` to step ``end``."""
        return self.durations[begin:end]

    def to_json(self) -> dict[str, Any]:
        """Return the record for another process."""
        adjusted = [[each.progress.step, each.knob, each.before, each.after, each.reason] for each in self.adjusted]
        return {name: getattr(self, name) for name in self.__slots__} | {"adjusted": adjusted}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` has told."""
        adjusted = [
            ResourcesAdjusted(Progress(step), Knob(knob), before, after, reason)
            for step, knob, before, after, reason in told["adjusted"]
        ]
        return cls(**{**told, "adjusted": adjusted})


def _overrides(folder: str, plan: Plan, *more: str) -> list[str]:
    return [
        f"run.dir={folder}/run",
        f"run.cache_dir={plan.folder / 'cache'}",
        f"run.budget.steps={plan.steps}",
        "state_store.every=0",
        "evaluation.every=0",
        "evaluation.at_start=false",
        "monitors=[jsonl]",
        "optimizer.device=cpu",
        *plan.overrides,
        *more,
    ]


def train(
    plan: Plan,
    *more: str,
    events: Mapping[int, Callable[[], object]] | None = None,
    pause: Callable[[int], object] = lambda _: None,
    **parts: Any,
) -> Record:
    """Train as ``plan`` and ``more`` say on other ``parts``; return what it did.

    What is done behind steps, ``events`` and then ``pause``, which is told the step, is no step's time.
    """
    record, acts = Record(), events or {}
    began = 0.0

    def begin(_: object = None) -> None:
        nonlocal began
        began = time.perf_counter()

    def note(event: StepCompleted) -> None:
        record.durations.append(time.perf_counter() - began)
        record.engine.append(event.outcome.step_seconds)
        record.losses.append(event.outcome.loss)
        record.num_tokens = event.outcome.num_tokens
        if (act := acts.get(event.progress.step)) is not None:
            act()
        pause(event.progress.step)
        begin()

    with tempfile.TemporaryDirectory(dir=plan.folder) as folder:
        run = build(load_settings([], _overrides(folder, plan, *more), {}).settings, report=lambda _: None, **parts)
        run.subscribe(RunStarted, begin)
        run.subscribe(StepCompleted, note)
        run.subscribe(ResourcesAdjusted, record.adjusted.append)
        run.run()
    return record


def on_a_slow_disk(plan: Plan, *, is_managed: bool, rate: float) -> Record:
    """Train while the disk is slow for the disturbed steps: a stream, with Holdfast's other defaults."""
    disk = SlowDisk(texts())
    events = {plan.quiet: lambda: disk.slow_down(rate), plan.quiet + plan.disturbed: disk.recover}
    more = ("data.mode=stream", "data.shuffle_tokens=4096", f"resources.auto_tune={str(is_managed).lower()}")
    return train(plan, *more, events=events, data_source=disk, resource_probe=MemoryResourceProbe())


@cache
def texts() -> list[str]:
    """Return pieces of the Python library, of one length."""
    library = PythonLibraryDataSource()
    documents = (item for unit in library.units() for item in library.read(unit) if isinstance(item, Document))
    whole = (item.text[:_CHARACTERS] for item in documents if len(item.text) >= _CHARACTERS)
    return list(islice(whole, _TEXTS))


def beside_a_hog(plan: Plan, *, is_managed: bool, pause: Callable[[int], object] = lambda _: None) -> Record:
    """Train on a machine that another process fills to 90 % and then to 97 % for the disturbed steps."""
    with closing(Hog()) as hog:
        machine = SmallMachine([hog.pid])

        def fill(share: float) -> None:
            if machine.limit is None:
                machine.limit = machine.used + plan.room
            hog.hold(0)
            hog.hold(int(share * machine.limit) - machine.used)

        events = {
            plan.quiet: lambda: fill(0.9),
            plan.quiet + plan.disturbed // 2: lambda: fill(0.97),
            plan.quiet + plan.disturbed: lambda: fill(0.0),
        }
        manage = f"resources.auto_tune={str(is_managed).lower()}"
        return train(plan, manage, events=events, pause=pause, resource_probe=machine, data_source=SlowDisk(texts()))


def on_a_quiet_machine(plan: Plan, *, is_managed: bool, pause: Callable[[int], object] = lambda _: None) -> Record:
    """Train with all defaults, checkpoints included, while nothing happens."""
    manage = f"resources.auto_tune={str(is_managed).lower()}"
    return train(plan, manage, "state_store.every=20", pause=pause, data_source=SlowDisk(texts()))
