"""Cost of trackers for training: all at once, and one whose server never answers: ``python -m benchmarks.trackers``."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

from benchmarks.phases import PhasedRun, cost, num_phases
from benchmarks.report import Figure, main
from benchmarks.smoke import SMALL_RUN, has_peer
from benchmarks.turns import Answers, Contender, end_with_parent
from holdfast.application.handlers.monitor_thread import MonitorThread

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from holdfast.domain.events import StepCompleted

STEPS, PAIRS = 20, 40  # of a phase, and phases with trackers
_LIMIT = 1.01
_BEGIN_SECONDS = 120
_TRACKERS = {
    "tensorboard": ("tensorboard", ""),
    "mlflow": ("sqlalchemy", ""),
    "wandb": ("wandb", "mode: offline"),
    "trackio": ("trackio", "dir: '{folder}/trackio'"),
    "prometheus": ("prometheus_client", "port: null, textfile: '{folder}/run.prom'"),
    "sqlite": ("sqlite3", ""),
}
"""By kind of monitor the package that it needs, and its settings."""

_HANGING = {"mlflow": ("sqlalchemy", "tracking_uri: '{hole}'"), "wandb": ("wandb", "base_url: '{hole}'")}


@final
class TrackedRun:
    """A run whose trackers get nothing in every other phase.

    In the middle of a phase with trackers they are flushed, as before a checkpoint.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._length, self._number = plan["length"], plan["phases"]
        self._kinds, self._seconds_to_begin = plan["kinds"], plan["seconds_to_begin"]
        self._threads: dict[str, MonitorThread] = {}
        self._phased = PhasedRun(plan["overrides"], self._length, self._number)
        self._spent: list[dict[str, float]] = []
        self._records: Counter[str] = Counter()

    def run(self) -> Mapping[str, Any]:
        """Train; return the seconds of each phase, and each tracker's processor seconds and number of steps."""
        record = MonitorThread.record

        def gated(thread: MonitorThread, step: int, metrics: Mapping[str, float]) -> None:
            if thread.name in self._kinds:
                self._threads[thread.name] = thread
                if (step - 1) // self._length % 2 == 0:
                    return  # by the step, as metrics come from a thread behind it
                self._records[thread.name] += "loss" in metrics
            record(thread, step, metrics)

        MonitorThread.record = gated  # type: ignore[assignment, method-assign]
        seconds = self._phased.run(self._at_step)
        before, after = self._spent
        processor = {name: after[name] - before[name] for name in before}
        return {"seconds": seconds, "processor": processor, "records": self._records}

    def _at_step(self, event: StepCompleted, phase: int, steps: int) -> None:
        if self._phased.is_on and steps == self._length // 2:
            for thread in self._threads.values():
                thread.flush(event.progress.step)
        if steps == self._length and phase == 1:  # they open their sinks
            for thread in self._threads.values():
                thread.settle(self._seconds_to_begin)
        if steps == self._length and phase in {1, self._number}:
            clocks = {thread.name: time.pthread_getcpuclockid(thread.ident or 0) for thread in threading.enumerate()}
            self._spent.append({name: time.clock_gettime(clocks[f"monitor {name}"]) for name in self._threads})


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of a run with all trackers that are installed, and of one whose tracker hangs."""
    if options.smoke:
        options.pairs, options.steps = 1, 2
    return [
        *_figures("all trackers", _TRACKERS, options, _BEGIN_SECONDS),
        *_figures("trackers whose server never answers", _HANGING, options, 1.0),
    ]


def _figures(
    name: str, trackers: Mapping[str, tuple[str, str]], options: argparse.Namespace, seconds_to_begin: float
) -> Sequence[Figure]:
    kinds = [kind for kind, (package, _) in trackers.items() if find_spec(package)]
    if options.smoke:
        for package, _ in trackers.values():
            has_peer(package, is_smoke=True)
    phases = num_phases(options.pairs)
    # of the server: the system accepts, and nobody answers
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        hole = f"http://127.0.0.1:{server.getsockname()[1]}"
        settings = {kind: trackers[kind][1].format(folder=folder, hole=hole) for kind in kinds}
        sections = [f"{{kind: {kind}, {settings[kind]}}}" if settings[kind] else kind for kind in kinds]
        plan = {
            "overrides": [
                *((*SMALL_RUN, f"run.cache_dir={folder}/cache") if options.smoke else ()),
                f"run.dir={folder}/run",
                f"monitors=[jsonl, {', '.join(sections)}]",
            ],
            "length": options.steps,
            "phases": phases,
            "kinds": kinds,
            "seconds_to_begin": seconds_to_begin,
        }
        with Contender("benchmarks.trackers", "run", plan) as contender:
            found = contender.ask("go")
    ratio = cost(found["seconds"])
    recorded = options.pairs * options.steps
    spent = ", ".join(f"{kind} {1e6 * value / recorded:.0f} µs" for kind, value in found["processor"].items())
    return [
        Figure(
            f"time of a step with {name} ({', '.join(kinds)}) / without, median of {options.pairs} phases of "
            f"{options.steps} steps [95 % interval]",
            "{:.4f}x [{:.4f}, {:.4f}]".format(*ratio),
            f"<= {_LIMIT}x (the interval reaches it)",
            ratio[1] <= _LIMIT,
        ),
        Figure(f"processor time of the threads of {name}, a recorded step, mean", spent),
        _recorded(name, found["records"], dict.fromkeys(kinds, phases // 2 * options.steps)),
    ]


def _recorded(name: str, found: Mapping[str, int], wanted: Mapping[str, int]) -> Figure:
    shown, goal = (", ".join(f"{kind} {number}" for kind, number in each.items()) for each in (found, wanted))
    return Figure(f"steps that {name} got", shown, goal, found == wanted, is_equality=True)


def _child() -> None:
    end_with_parent()
    answers = Answers()
    answers.give({})
    answers.give(dict(TrackedRun(json.loads(sys.argv[2])).run()))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "run":
        _child()
    else:
        main(
            "trackers",
            "The default run, whose trackers get the metrics of every other phase. A phase with trackers is compared "
            "with the mean of the phases before and after it. Each tracker has its local default.",
            measure,
            ("torch", "tensorboard", "mlflow-skinny"),
            add_options=lambda parser: (
                parser.add_argument("--pairs", type=int, default=PAIRS, help="phases with trackers"),
                parser.add_argument("--steps", type=int, default=STEPS, help="steps of a phase"),
            ),
        )
