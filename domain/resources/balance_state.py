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

REMEMBERED = 3  # readings: a change is judged after this many, and the next one waits as long
_PATIENCE, _BAR = 4, 64  # readings; doubled each time that a retry had no effect


@dataclass(frozen=True, slots=True)
class ResourceReading:
    """One reading over some ``steps``, with their seconds; ``memory`` and ``processors`` are fractions in use.

    ``batches_ready`` is the largest number of further batches found ready at one of the steps; ``stalled`` is the
    fraction of the time in which some task stalled for lack of memory, None if the system does not report it.
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
    """A change of a knob, and its reason."""

    knob: Knob
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class KnobTrial:
    """A change whose effect is not judged yet, with the seconds per step and the memory in use before it."""

    change: KnobChange
    pace: float
    memory: float


@dataclass(frozen=True, slots=True)
class SaveTiming:
    """The duration of a save, and how long training waited for it, in seconds."""

    seconds: float
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """Whether memory is short, the readings since it was short, and the readings before a reduction is undone."""

    is_short: bool = False
    calm: int = 0
    patience: int = _PATIENCE

    def seen(self, *, is_short: bool) -> MemoryTrend:
        """Return the trend after another reading; the patience doubles each time that memory becomes short."""
        begins = is_short and not self.is_short
        return MemoryTrend(is_short, 0 if is_short else self.calm + 1, self.patience * 2 if begins else self.patience)


@dataclass(frozen=True, slots=True)
class BalanceState:
    """The state of a policy; all durations are counted in readings.

    ``barred`` maps a knob to the readings left before it may be retried; ``bar`` is the length of the next ban.
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
        """Return the seconds per step, including waiting."""
        return self._seconds / max(1, sum(each.steps for each in self.readings))

    @property
    def waited(self) -> float:
        """Return the fraction of the time in which training waited for data."""
        return sum(each.wait_seconds for each in self.readings) / max(1e-9, self._seconds)

    @property
    def _seconds(self) -> float:
        return sum(each.step_seconds + each.wait_seconds for each in self.readings)


class BalancePolicy(Protocol):
    """Decides which knob to turn; its methods are pure functions."""

    def after_steps(self, state: BalanceState, reading: ResourceReading) -> tuple[BalanceState, KnobChange | None]:
        """Return the next state, and the change to make now, or None."""
        ...

    def after_save(self, state: BalanceState, saved: SaveTiming) -> tuple[BalanceState, KnobChange | None]:
        """Return the next state and the due change once a checkpoint is durable."""
        ...
