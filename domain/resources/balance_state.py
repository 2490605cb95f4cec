"""The inputs, the memory and the decisions of a policy that adapts a run to its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from holdfast.domain.resources.knobs import Knob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.resources.knobs import KnobSetting


Knobs = Mapping[Knob, "KnobSetting"]

REMEMBERED = 3  # readings: a change is judged by as many, and rests as long
_PATIENCE, _BAR = 4, 64  # readings; doubled each time that trying again was in vain


@dataclass(frozen=True, slots=True)
class ResourceReading:
    """Some ``steps`` as the balance sees them, with their seconds; ``memory`` and ``processors`` are shares in use.

    ``batches_ready`` are the most that any of them found ready behind its own; ``stalled`` is the share of the time in
    which something stood still for want of memory, None where the system does not tell.
    """

    step_seconds: float
    wait_seconds: float
    batches_ready: int
    steps: int = 1
    memory: float = 0.0
    processors: float = 0.0
    stalled: float | None = None


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A knob that is turned, and why."""

    knob: Knob
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class KnobTrial:
    """A change that is still to be judged, what a step took before it, and what share of memory was in use."""

    change: KnobChange
    pace: float
    memory: float


@dataclass(frozen=True, slots=True)
class SaveTiming:
    """A checkpoint as the balance sees it: how long it took, and how long training waited for it."""

    seconds: float
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """Whether memory is short, how long it has not been, and after how long what was taken away comes back."""

    is_short: bool = False
    calm: int = 0
    patience: int = _PATIENCE

    def seen(self, *, is_short: bool) -> MemoryTrend:
        """Return the memory after another reading; each time it becomes short the patience doubles."""
        begins = is_short and not self.is_short
        return MemoryTrend(is_short, 0 if is_short else self.calm + 1, self.patience * 2 if begins else self.patience)


@dataclass(frozen=True, slots=True)
class BalanceState:
    """What a policy remembers; all that is counted is counted in readings.

    ``barred`` tells for how long a knob is not tried again, ``bar`` for how long the next one will be.
    """

    knobs: Knobs
    readings: Sequence[ResourceReading] = ()
    rest: int = 0
    is_starved: bool = False
    trial: KnobTrial | None = None
    barred: Mapping[Knob, int] = field(default_factory=dict)
    bar: int = _BAR
    memory: MemoryTrend = MemoryTrend()

    def turned(self, change: KnobChange) -> BalanceState:
        """Return the state after ``change``: the next one waits until this one can be judged."""
        setting = replace(self.knobs[change.knob], value=change.after)
        return replace(self, knobs={**self.knobs, change.knob: setting}, rest=REMEMBERED)

    @property
    def pace(self) -> float:
        """Return how many seconds a step takes, waiting included."""
        return self._seconds / max(1, sum(each.steps for each in self.readings))

    @property
    def waited(self) -> float:
        """Return the share of the time in which training waited for data."""
        return sum(each.wait_seconds for each in self.readings) / max(1e-9, self._seconds)

    @property
    def _seconds(self) -> float:
        return sum(each.step_seconds + each.wait_seconds for each in self.readings)


class BalancePolicy(Protocol):
    """Decides which knob is turned: pure functions of what they are given."""

    def after_steps(self, state: BalanceState, reading: ResourceReading) -> tuple[BalanceState, KnobChange | None]:
        """Return what to remember, and the change that it is time for, if it is."""
        ...

    def after_save(self, state: BalanceState, saved: SaveTiming) -> tuple[BalanceState, KnobChange | None]:
        """Return the same once a checkpoint is durable."""
        ...
