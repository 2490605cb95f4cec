"""How long a step takes beside other programs that want the same processors."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from benchmarks.report import Figure, interval_of_median, main
from benchmarks.smoke import SMALL_RUN
from benchmarks.train.turns import Way
from holdfast.adapters.shared.device.host_memory import allowed_cpus
from holdfast.domain.resources.balance_policy import SPIN_COUNT

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

from benchmarks.train.turns import Turn

ROUNDS, LOADS = 5, (0, 1, 2, 4)
_A_TURN = 2
_PLACES = {0: "quiet", 1: "beside a busy process", 2: "beside 2 busy processes", 4: "beside 4 busy processes"}
_ALLOWED = 1.3
_LOSS = 0.99
_CPU, _UNIFIED = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_NAME, _PERIOD = "holdfast-beside", 100_000
# another number of spins than Holdfast's own is the user's, which is left alone: what was there before
_WAYS = {"before": str(int(SPIN_COUNT) + 1), "now": SPIN_COUNT}


@final
@dataclass
class Rounds:
    """The seconds of a step in each turn of each way, and whether they trained the same."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _WAYS})
    differs: float = 0.0

    def add(self, turns: dict[str, Turn]) -> None:
        """Count a turn of each way."""
        before, now = (turns[name].losses for name in _WAYS)
        self.differs = max(self.differs, *(abs(one / other - 1.0) for one, other in zip(before, now, strict=True)))
        for name, turn in turns.items():
            self.seconds[name].append(turn.seconds / len(turn.losses))

    def median(self, name: str) -> float:
        """Return the median of the way called ``name``."""
        return statistics.median(self.seconds[name])

    def shown(self, name: str) -> str:
        """Return the median of the way called ``name``, and its interval."""
        return "{:.2f} s [{:.2f}, {:.2f}]".format(*interval_of_median(self.seconds[name]))


@final
@dataclass(frozen=True)
class Plan:
    """The numbers of busy processes, the rounds that count, and further settings of the runs."""

    folder: Path
    loads: Sequence[int] = LOADS
    rounds: int = ROUNDS
    more: Sequence[str] = ()


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of both ways beside each number of busy processes, on one processor and under a quota."""
    places = {
        "on one processor (`taskset -c 0`)": _bound,
        "in a control group of one processor": _in_group,
    }
    with tempfile.TemporaryDirectory() as name:
        plan = Plan(Path(name))
        if options.smoke:
            plan, places = Plan(Path(name), (0, 1), 1, SMALL_RUN), {}
        found = _beside(plan)
        alone = {place: _on_one(plan, bounded) for place, bounded in places.items()}
    quiet = found[0].median("before")
    figures = [_equal(max(rounds.differs for rounds in found.values()))]
    for load, rounds in found.items():
        fair = max(1.0, (allowed_cpus() + load) / allowed_cpus())
        figures += _rows(_PLACES[load], rounds, quiet * fair)
    figures.append(_kept(found[0]))
    for place, one in alone.items():
        figures += [Figure(place, "cannot be made here")] if one is None else _rows(place, one, quiet * allowed_cpus())
    return figures


def _equal(differs: float) -> Figure:
    if differs > 0.0:
        message = f"the ways do not compute the same, so their times do not compare: losses differ by {differs:.1e}"
        raise SystemExit(message)
    return Figure("largest difference of a step's loss between the two (else nothing is timed)", "0", "0", is_met=True)


def _rows(place: str, rounds: Rounds, fair: float) -> Sequence[Figure]:
    share = rounds.median("now") / fair
    return [
        Figure(
            f"{place}: a step before, median of {len(rounds.seconds['now'])} turns [95 % interval]",
            rounds.shown("before"),
        ),
        Figure(f"{place}: a step now", rounds.shown("now")),
        Figure(f"{place}: now / fair share, which is {fair:.2f} s", f"{share:.2f}x", "<= 1.3x", share <= _ALLOWED),
    ]


def _kept(rounds: Rounds) -> Figure:
    pairs = zip(rounds.seconds["before"], rounds.seconds["now"], strict=True)
    middle, low, high = interval_of_median([before / now for before, now in pairs])
    text = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
    return Figure("quiet: tokens/s now / before", text, ">= 0.99 (the interval reaches it)", high >= _LOSS)


def _beside(plan: Plan) -> dict[int, Rounds]:
    steps = len(plan.loads) * (plan.rounds + 1) * _A_TURN
    with ExitStack() as stack:
        ways = {name: stack.enter_context(_way(plan, name, steps)) for name in _WAYS}
        return {load: _rounds(plan, ways, load) for load in plan.loads}


def _rounds(plan: Plan, ways: dict[str, Way], load: int) -> Rounds:
    rounds = Rounds()
    with _busy(load):
        for number in range(plan.rounds + 1):
            names = list(ways) if number % 2 else list(reversed(ways))
            turns = {name: ways[name].turn() for name in names}
            if number:  # the first shows a way what there is beside it
                rounds.add(turns)
    return rounds


def _on_one(plan: Plan, bounded: Callable[[], AbstractContextManager[None]]) -> Rounds | None:
    steps = (plan.rounds + 1) * _A_TURN
    with ExitStack() as stack:
        try:
            with bounded():
                ways = {name: stack.enter_context(_way(plan, name, steps)) for name in _WAYS}
        except OSError:
            return None
        return _rounds(plan, ways, 0)


@contextmanager
def _way(plan: Plan, name: str, steps: int) -> Iterator[Way]:
    overrides = [
        f"run.dir={tempfile.mkdtemp(dir=plan.folder)}",
        f"run.cache_dir={plan.folder / 'cache'}",
        f"run.budget.steps={steps + 1}",
        "state_store.every=0",
        "evaluation.every=0",
        "evaluation.at_start=false",
        "optimizer.device=cpu",
        *plan.more,
    ]
    chosen = os.environ.get("GOMP_SPINCOUNT")
    os.environ["GOMP_SPINCOUNT"] = _WAYS[name]
    try:
        way = Way("holdfast", overrides, steps=steps, a_turn=_A_TURN)
    finally:
        os.environ.pop("GOMP_SPINCOUNT")
        os.environ.update({} if chosen is None else {"GOMP_SPINCOUNT": chosen})
    with way:
        yield way


@contextmanager
def _busy(number: int) -> Iterator[None]:
    spin = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(number):
            stack.callback(stack.enter_context(subprocess.Popen(spin)).kill)
        yield


@contextmanager
def _bound() -> Iterator[None]:
    """Start what is started within the block on the first processor alone."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def _in_group() -> Iterator[None]:
    """Start what is started within the block in a control group of one processor; raises ``OSError`` if none can be."""
    is_first = (_CPU / "cpu.shares").exists() or (_CPU / "tasks").exists()
    parent = _CPU if is_first else _UNIFIED
    group, mine = parent / _NAME, str(os.getpid())
    with suppress(FileExistsError):
        group.mkdir()
    if is_first:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(_PERIOD))
    else:
        (group / "cpu.max").write_text(f"{_PERIOD} {_PERIOD}")
    (group / "cgroup.procs").write_text(mine)
    try:
        yield
    finally:
        (parent / "cgroup.procs").write_text(mine)  # the group itself goes with the machine: its processes are there


if __name__ == "__main__":
    main(
        "beside",
        "The step of the default run on a CPU beside processes that are always busy, without evaluations and "
        "checkpoints. Two variants take turns of 2 steps, each in its own process, which is stopped during the turn "
        "of the other. In the variant `before`, threads always spin 10,000,000 times at each barrier. In the variant "
        "`now`, threads sleep soon while other programs use the processors. With a fair share of C processors among "
        "T threads and N busy processes, a step takes (T + N) / C times as long as a quiet step. The cause of the "
        "difference: a spinning thread uses up its own time on a processor. When there is work for this thread, the "
        "system runs the other processes first, and each barrier of a step waits for the slowest thread. A sleeping "
        "thread has time on the processor left, so the system runs it as soon as it is woken.",
        measure,
        ("torch", "transformers", "accelerate"),
    )
