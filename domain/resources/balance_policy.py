"""The policy by which a run adapts its use of the machine: hysteresis, one knob at a time, a rest after each change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, final

from holdfast.domain.checkpoints.tiers import Hysteresis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Knob(StrEnum):
    """A quantity that can change during a run without changing the result, except for rounding by ``MICRO_BATCH``."""

    PREFETCH = "prefetch"
    THREADS = "threads"
    MICRO_BATCH = "micro_batch"
    SAVE_EVERY = "save_every"


@dataclass(frozen=True, slots=True)
class KnobSetting:
    """The value of a knob, its value at the start of the run, and the range in which it may be turned."""

    value: int
    usual: int
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """The fraction of the last ten seconds in which tasks stalled for lack of each resource; None if not reported."""

    memory: float | None = None
    disk: float | None = None
    processors: float | None = None


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """The use of the machine at one moment, as fractions from 0 to 1; None is a figure that is not available.

    ``memory`` is that of the machine or the control group, whichever is fuller. ``processors`` is the fraction that was
    busy, and ``disk_bytes`` and ``network_bytes`` are bytes per second, since the sample before. ``pressure`` is
    Linux's own figure.
    """

    memory: float
    processors: float
    disk: float
    disk_bytes: float
    network_bytes: float
    pressure: Pressure = Pressure()
    gpu_memory: float | None = None
    gpu: float | None = None


_WAITING = Hysteresis(0.10, 0.03)  # shares of the time that training waits for data, or for saves
_NOTICED_SECONDS = 0.2  # shorter waits among the remembered readings are noise
_LONG_SECONDS = 1.0  # of a save that is worth another interval
_SCARCE = 0.95  # of memory: beyond this the kernel's out-of-memory killer is next
_CRITICAL = 0.99  # of memory: in any case
_STALLED = 0.01  # of the time: tasks stall while the kernel reclaims memory
_BUSY = 0.95  # processors that are this busy gain nothing from more threads
_BETTER = 0.95  # of the previous time: a change that saves less had no effect
_ROOM = 0.01  # of the memory: a smaller micro-batch that frees less is not worth its time


@dataclass(frozen=True, slots=True)
class Balance:
    """Doubles and halves knobs, so that a steady load leads to a few changes and then to none.

    - Memory counts as short from the upper end of ``memory`` until it falls below the lower one. Meanwhile fewer
      batches are prefetched, by fewer threads, unless training already waits for data. Close to running out,
      micro-batches become smaller if that frees memory: from 95 % if the kernel has begun to reclaim memory or does not
      report it, and from 99 % in any case. Smaller micro-batches cost time, and memory that other programs hold without
      using it does no harm.
    - Reductions are undone once memory has been free for a while; if that was too early, the next wait is twice as
      long.
    - If training waits for data more than a tenth of its time, it gets more threads, then more prefetched batches. A
      change that does not make steps faster is undone, as is a reduction that makes training wait for data; neither is
      retried for a while, which doubles each time.
    - Saves for which training waits more than a tenth of its time become rarer, and as frequent as before once they are
      quick.
    """

    memory: Hysteresis = Hysteresis()  # noqa: RUF009  frozen

    def after_steps(self, state: BalanceState, reading: ResourceReading) -> tuple[BalanceState, KnobChange | None]:
        """Return the next state, and the change to make now, or None."""
        state = self._seen(state, reading)
        if state.rest:
            return replace(state, rest=state.rest - 1), None
        if state.trial is not None and _is_in_vain(state, state.trial):
            return _undone(state, state.trial.change)
        state = replace(state, trial=None)
        if (change := self._relief(state) or self._supply(state)) is not None:
            return replace(state.turned(change), trial=KnobTrial(change, state.pace, reading.memory)), change
        if (change := self._return(state)) is not None:
            return state.turned(change), change
        return state, None

    def after_save(self, state: BalanceState, saved: SaveTiming) -> tuple[BalanceState, KnobChange | None]:
        """Return the next state and the due change once a checkpoint is durable."""
        setting = state.knobs.get(Knob.SAVE_EVERY)
        period = state.pace * setting.value if setting else 0.0
        if setting is None or not period:
            return state, None
        stall = saved.stall_seconds
        share = stall / (period + stall)
        if share >= _WAITING.enter and stall >= _LONG_SECONDS and setting.value * 2 <= setting.maximum:
            reason = f"training waited {stall:.1f} s for a save, {share:.0%} of its time"
            change = KnobChange(Knob.SAVE_EVERY, setting.value, setting.value * 2, reason)
        elif share <= _WAITING.leave and saved.seconds <= period / 4 and setting.value > setting.usual:
            reason = f"a save takes {saved.seconds:.1f} s again"
            change = KnobChange(Knob.SAVE_EVERY, setting.value, max(setting.usual, setting.value // 2), reason)
        else:
            return state, None
        return replace(state.turned(change), rest=state.rest), change

    def _seen(self, state: BalanceState, reading: ResourceReading) -> BalanceState:
        is_short = self.memory.holds(reading.memory, held=state.memory.is_short)
        seen = replace(
            state,
            readings=(*state.readings, reading)[-REMEMBERED:],
            memory=state.memory.seen(is_short=is_short),
            barred={knob: left - 1 for knob, left in state.barred.items() if left > 1},
        )
        waited = sum(each.wait_seconds for each in seen.readings)
        is_enough = len(seen.readings) == REMEMBERED and waited >= _NOTICED_SECONDS
        return replace(seen, is_starved=is_enough and _WAITING.holds(seen.waited, held=state.is_starved))

    def _relief(self, state: BalanceState) -> KnobChange | None:
        """Return the reduction to make while memory is short."""
        if not state.memory.is_short:
            return None
        is_critical = _is_critical(state.readings[-1])
        feed = (Knob.PREFETCH, Knob.THREADS) if is_critical or not state.is_starved else ()
        knobs = [knob for knob in feed if is_critical or knob not in state.barred]
        if is_critical and Knob.MICRO_BATCH not in state.barred:
            knobs.append(Knob.MICRO_BATCH)
        return _halved(state, knobs, f"{state.readings[-1].memory:.0%} of the memory is in use")

    def _supply(self, state: BalanceState) -> KnobChange | None:
        """Return the change that may shorten the wait for data."""
        if state.memory.is_short or not state.is_starved:
            return None
        is_busy = state.readings[-1].processors >= _BUSY
        knobs = (Knob.PREFETCH,) if is_busy else (Knob.THREADS, Knob.PREFETCH)
        reason = f"training waited for data {state.waited:.0%} of its time"
        free = [knob for knob in knobs if knob not in state.barred]
        return _doubled(state, free, lambda setting: setting.maximum, reason)

    def _return(self, state: BalanceState) -> KnobChange | None:
        """Return the reduction to undo now that memory is free again."""
        if state.memory.is_short or state.memory.calm < state.memory.patience:
            return None
        knobs = (Knob.MICRO_BATCH, Knob.THREADS, Knob.PREFETCH)
        reason = f"only {state.readings[-1].memory:.0%} of the memory is in use again"
        return _doubled(state, knobs, lambda setting: setting.usual, reason)


def _is_in_vain(state: BalanceState, trial: KnobTrial) -> bool:
    """Return whether a change had no effect or made training wait for data."""
    change, now = trial.change, state.readings[-1]
    if change.knob is Knob.MICRO_BATCH:
        return now.memory > trial.memory - _ROOM
    if change.after > change.before:
        return state.is_starved and state.pace > _BETTER * trial.pace
    return state.is_starved and not _is_critical(now)


def _is_critical(reading: ResourceReading) -> bool:
    is_left_alone = reading.stalled is not None and reading.stalled < _STALLED
    return reading.memory >= (_CRITICAL if is_left_alone else _SCARCE)


def _undone(state: BalanceState, change: KnobChange) -> tuple[BalanceState, KnobChange]:
    is_for_data = change.after < change.before and change.knob is not Knob.MICRO_BATCH
    did = "made training wait for data" if is_for_data else "brought nothing"
    back = KnobChange(change.knob, change.after, change.before, f"a change to {change.after} {did}")
    barred = {**state.barred, change.knob: state.bar}
    return replace(state.turned(back), trial=None, barred=barred, bar=2 * state.bar), back


def _halved(state: BalanceState, knobs: Iterable[Knob], reason: str) -> KnobChange | None:
    for knob in knobs:
        setting = state.knobs.get(knob)
        if setting is not None and setting.value > setting.minimum:
            return KnobChange(knob, setting.value, max(setting.minimum, setting.value // 2), reason)
    return None


def _doubled(
    state: BalanceState, knobs: Iterable[Knob], limit: Callable[[KnobSetting], int], reason: str
) -> KnobChange | None:
    for knob in knobs:
        setting = state.knobs.get(knob)
        if setting is not None and setting.value < limit(setting):
            return KnobChange(knob, setting.value, min(limit(setting), setting.value * 2), reason)
    return None


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


SPIN_COUNT = "10000000"

_MUCH, _LITTLE = 0.2, 0.1
_LEAST_CALM, _MOST_CALM, _SOON = 6, 120, 4
_LEAST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds for which threads ``ran``, and for which they ``waited`` for a processor, all since their beginning."""

    ran: float
    waited: float


@final
class Spinning:
    """Decides at each check: a thread that spins uses up the time slice that it needs once the other threads arrive.

    Spins are brief from the check on at which threads have waited for a fifth as long as they ran, until they have
    waited for less than a tenth in ``_LEAST_CALM`` checks in a row. Each time that soon proves too early, twice as many
    are needed, up to ``_MOST_CALM``. A check counts only if threads ran and waited for at least ``_LEAST_SECONDS``
    since the last one that counted: while a run loads its parts, a wait of milliseconds is a large share of nothing.
    """

    def __init__(self) -> None:
        self._last = ThreadTimes(0.0, 0.0)
        self._is_brief = False
        self._calm = _MOST_CALM  # checks in a row without contention
        self._needed = _LEAST_CALM

    def is_brief(self, now: ThreadTimes) -> bool:
        """Return whether spins are brief until the next check; ``now`` are the totals at this check."""
        ran, waited = now.ran - self._last.ran, now.waited - self._last.waited
        if ran + waited < _LEAST_SECONDS:
            return self._is_brief
        self._last = now
        share = waited / ran if ran > 0.0 else 0.0
        if not self._is_brief:
            self._calm += 1
            if share >= _MUCH:
                was_early = self._calm <= _SOON * self._needed
                self._needed = min(_MOST_CALM, 2 * self._needed) if was_early else _LEAST_CALM
                self._is_brief, self._calm = True, 0
        else:
            self._calm = self._calm + 1 if share < _LITTLE else 0
            if self._calm >= self._needed:
                self._is_brief, self._calm = False, 0
        return self._is_brief
