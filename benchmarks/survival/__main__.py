"""A run on a disk that becomes slow and beside a process that takes memory, and what watching over it costs."""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, interval_of_median, main
from benchmarks.smoke import SMALL_RUN
from benchmarks.survival.runs import Plan, Record, beside_a_hog, on_a_quiet_machine, on_a_slow_disk
from benchmarks.turns import Contender
from holdfast.bootstrap.process.library_environment import set_library_defaults

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

_ROUNDS = 5
_TURN = 2  # steps
_WHOLE, _SHORT = (12, 40, 28), (4, 4, 4)
_SMALL_ROOM = 256 << 20
_CHARACTERS_PER_TOKEN = 3.0
_SUPPLIED = 0.25  # of what training takes that one reader of the slow disk gets: two readers feed half of it
_SOON = 10  # steps
_FELT = 1.25  # of a usual step: what is read ahead covers for a slow disk until then

DESCRIPTION = (
    "The default run on a CPU, without evaluations, on 120 texts from the Python library. Each run has a quiet "
    f"phase, a disturbed phase and another quiet phase, of {', '.join(map(str, _WHOLE))} steps. Each round has one "
    "run with `resources.auto_tune=true` (managed) and one run with false, and the first of the two changes from "
    f"round to round. Except on the slow disk, the two runs take turns of {_TURN} steps, each in its own process, "
    "which is stopped during the turn of the other run. The slow disk gives each reader a quarter of the bytes per "
    "second that training needs, for any number of readers, and the windows of the stream are as small as possible. "
    "All processes use the command line's settings of the heap. The memory hog is a process that allocates real "
    "memory. The run receives a memory limit of 2 GiB more than the run needs, and the hog fills the memory to 90 % "
    "of the limit, then to 97 %. No process waits for memory there, so the number of rows at once does not change, "
    "and the goal is that no speed is lost. The effect of a slow disk begins when the batches that were read ahead "
    f"are used up: at the first step that takes {_FELT:g} times as long as a usual step. Rates are measured over the "
    "disturbed phase and the last phase. Quiet runs save a checkpoint every 20 steps. The time outside the engine is "
    "all time except `StepOutcome.step_seconds`: data, handlers, commands and captures. The speeds of two processes "
    "of the same run may differ by a third from the first step on, so beside a hog the speed of each process is "
    f"measured relative to its own quiet steps. The upper end of an interval of {_ROUNDS} rounds is the best round."
)

Pair = tuple[Record, Record]


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of all three machines."""
    rounds = 1 if options.smoke else _ROUNDS
    set_library_defaults()  # as the command line does
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        plan = Plan(*_WHOLE, Path(folder))
        if options.smoke:
            plan = Plan(*_SHORT, Path(folder), SMALL_RUN, _SMALL_ROOM)
        first = replace(plan, quiet=2, disturbed=0, after=0)  # makes the tokenizer and warms up
        on_a_quiet_machine(first, is_managed=False)
        quiet = [_in_turns("quiet", number, plan) for number in range(rounds)]
        step = statistics.median(quiet[0][1].seconds(plan.quiet, plan.steps))
        rate = _SUPPLIED * _CHARACTERS_PER_TOKEN * quiet[0][1].num_tokens / step
        slow = [_one_by_one(number, plan, rate) for number in range(rounds)]
        hog = [_here(plan) if options.smoke else _in_turns("memory hog", number, plan) for number in range(rounds)]
    return [*_slow_figures(plan, slow), *_hog_figures(plan, hog), *_quiet_figures(plan, quiet)]


def _in_turns(scene: str, number: int, plan: Plan) -> Pair:
    """Return a round's records with the manager and without it, in turns: a slow minute is one for both."""
    print(f"{scene}, round {number + 1}", file=sys.stderr)
    told = asdict(plan) | {"folder": str(plan.folder), "scene": scene, "a_turn": _TURN}
    with ExitStack() as stack:
        names = ("managed", "plain") if number % 2 == 0 else ("plain", "managed")
        runs = [stack.enter_context(Contender("benchmarks.survival.child", name, told)) for name in names]
        found: dict[str, Record] = {}
        turns = [*runs, *reversed(runs)]  # neither is always the first
        while len(found) < len(runs):
            for run in turns:
                if run.name not in found and (record := run.ask("go on").get("record")) is not None:
                    found[run.name] = Record.from_json(record)
    return found["managed"], found["plain"]


def _here(plan: Plan) -> Pair:
    """Return the records beside a hog of runs in this process, which is quick and no measurement."""
    return beside_a_hog(plan, is_managed=True), beside_a_hog(plan, is_managed=False)


def _one_by_one(number: int, plan: Plan, rate: float) -> Pair:
    """Return the same on a slow disk, one whole run after the other: a disk does not wait for whose turn it is."""
    print(f"slow disk, round {number + 1}", file=sys.stderr)
    order = (True, False) if number % 2 == 0 else (False, True)
    records = {is_managed: on_a_slow_disk(plan, is_managed=is_managed, rate=rate) for is_managed in order}
    return records[True], records[False]


def _slow_figures(plan: Plan, pairs: Sequence[Pair]) -> list[Figure]:
    furthest = max(
        abs(ours - theirs)
        for managed, plain in pairs
        for ours, theirs in zip(managed.losses, plain.losses, strict=True)
    )
    recovered = [_steps_to_recover(plan, managed) for managed, _ in pairs]
    return [
        Figure(
            "slow disk: largest difference of a step's loss", f"{furthest:.0f}", "0", furthest == 0.0, is_equality=True
        ),
        _rate("slow disk", plan, pairs, at_least=1.2),
        _first_change("slow disk: steps from the first that is slower", plan, pairs, _step_that_felt_it),
        Figure(
            "slow disk: steps behind its end until one is as fast as before it, most",
            str(max(recovered)),
            f"<= {_SOON}",
            max(recovered) <= _SOON,
        ),
        _changes("slow disk", pairs),
    ]


def _hog_figures(plan: Plan, pairs: Sequence[Pair]) -> list[Figure]:
    left = [knob for managed, _ in pairs for knob, value in _turned(managed).items() if value[0] != value[1]]
    return [
        _rate("memory hog, each by its own quiet steps", plan, pairs, at_least=1.0, by_own=True),
        _first_change("memory hog: steps", plan, pairs, lambda plan, _: plan.quiet),
        Figure("memory hog: knobs that are not as they were at the end", str(len(left)), "0", not left),
        _changes("memory hog", pairs),
    ]


def _quiet_figures(plan: Plan, pairs: Sequence[Pair]) -> list[Figure]:
    changes = sum(len(managed.adjusted) for managed, _ in pairs)
    walls = [sum(managed.seconds(plan.quiet, plan.steps)) for managed, _ in pairs]
    engines = [sum(managed.engine[plan.quiet :]) for managed, _ in pairs]
    outside = 1 - sum(engines) / sum(walls)
    return [
        _rate("quiet", plan, pairs, at_least=1.0),
        Figure("quiet: changes", str(changes), "0", changes == 0),
        Figure("quiet: host time outside the engine / step time", f"{outside:.2%}", "<= 1 %", outside <= 0.01),
    ]


def _rate(name: str, plan: Plan, pairs: Sequence[Pair], *, at_least: float, by_own: bool = False) -> Figure:
    def taken(record: Record) -> float:
        own = statistics.median(record.seconds(2, plan.quiet)) if by_own else 1.0
        return sum(record.seconds(plan.quiet, plan.steps)) / own

    ratios = [taken(plain) / taken(managed) for managed, plain in pairs]
    middle, low, high = interval_of_median(ratios)
    is_met = middle >= at_least if at_least > 1 else high >= at_least
    return Figure(
        f"{name}: tokens/s managed / not, median of {len(pairs)} rounds [95 % interval]",
        f"{middle:.2f}x [{low:.2f}, {high:.2f}]",
        f">= {at_least}x" + ("" if at_least > 1 else " (the interval reaches it)"),
        is_met,
    )


def _first_change(name: str, plan: Plan, pairs: Sequence[Pair], begin_of: Callable[[Plan, Record], int]) -> Figure:
    firsts = []
    for managed, _ in pairs:
        steps = [each.progress.step for each in managed.adjusted if each.progress.step > plan.quiet]
        begin = begin_of(plan, managed)
        firsts.append(max(0, min(steps, default=plan.steps) - begin))
    return Figure(f"{name} until the first change, most", str(max(firsts)), f"<= {_SOON}", max(firsts) <= _SOON)


def _step_that_felt_it(plan: Plan, record: Record) -> int:
    usual = statistics.median(record.seconds(2, plan.quiet))
    disturbed = record.seconds(plan.quiet, plan.steps)
    return next(
        (plan.quiet + number for number, seconds in enumerate(disturbed, 1) if seconds > _FELT * usual), plan.steps
    )


def _changes(name: str, pairs: Sequence[Pair]) -> Figure:
    told = [f"{each.knob} {each.before} to {each.after}" for each in pairs[0][0].adjusted]
    return Figure(f"{name}: changes of the first round", "; ".join(told) or "none")


def _turned(record: Record) -> dict[str, tuple[int, int]]:
    """Return for each knob that was turned where it stood at first and at last."""
    turned: dict[str, tuple[int, int]] = {}
    for each in record.adjusted:
        first, _ = turned.get(each.knob, (each.before, each.before))
        turned[each.knob] = first, each.after
    return turned


def _steps_to_recover(plan: Plan, record: Record) -> int:
    usual = 1.1 * statistics.median(record.seconds(2, plan.quiet))
    after = record.seconds(plan.quiet + plan.disturbed, plan.steps)
    return next((number for number, seconds in enumerate(after, 1) if seconds <= usual), len(after) + 1)


if __name__ == "__main__":
    main("survival", DESCRIPTION, measure, ("torch", "transformers", "psutil", "numpy"))
