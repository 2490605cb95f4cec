"""The time of a training step while a checkpoint is evaluated by suites: ``python -m benchmarks.suites``."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, final

import psutil

from benchmarks.report import Figure, interval_of_median, main
from benchmarks.smoke import SMALL_RUN, need
from holdfast.bootstrap.run import build
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.attach.suite_process import EvaluateProcess
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import StepCompleted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast.bootstrap.run import Run
    from holdfast.configs.settings import TrainSettings

PAIRS, BLOCK = 20, 10  # a pair is a block of steps with the evaluation and one without
_EXAMPLES = 50_000  # more than are evaluated in the meantime
_ALLOWED = 1.05
_SECONDS_TO_BEGIN = 900.0
_TASK = """\
task: own_words
dataset_path: json
dataset_kwargs: {{data_files: {examples}}}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["yes", "no", "perhaps"]
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""


@final
class Blocks:
    """The seconds of the steps of a run, in blocks with the evaluation and with it suspended, in turn."""

    def __init__(self, process: EvaluateProcess, run: Run, pairs: int, length: int) -> None:
        self._process = process
        self._run = run
        self._pairs, self._length = pairs, length
        self._last = 0.0
        self._steps = -length  # the first ones warm up
        self._seconds: list[list[float]] = [[] for _ in range(2 * pairs)]

    def __call__(self, _: StepCompleted) -> None:
        """Count a step, and suspend or resume the evaluation at the end of a block."""
        block, number = divmod(self._steps, self._length)
        if 0 <= block < 2 * self._pairs and number:  # the first of a block meets the change
            self._seconds[block].append(time.perf_counter() - self._last)
        self._steps += 1
        if self._steps % self._length == 0:
            self._change(self._steps // self._length)
        self._last = time.perf_counter()

    def _change(self, block: int) -> None:
        if block == 2 * self._pairs:
            self._run.request_stop("all was measured")
            return
        if self._process.outcome() is not None:
            message = "the evaluation has ended before all was measured, so nothing is reported"
            raise SystemExit(message)
        for child in psutil.Process().children(recursive=True):
            (child.resume if _has_evaluation(block) else child.suspend)()

    def ratios(self) -> Sequence[float]:
        """Return the mean time of a step beside the evaluation, as a multiple of that without, for each pair."""
        means = [sum(block) / len(block) for block in self._seconds]
        return [
            means[block + (not _has_evaluation(block))] / means[block + _has_evaluation(block)]
            for block in range(0, 2 * self._pairs, 2)
        ]


def _has_evaluation(block: int) -> bool:
    """Return whether the evaluation runs in ``block``: the pairs begin with and without it in turn."""
    return block % 4 in (0, 3)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return how much longer a step takes beside an evaluation, as a median over pairs of blocks."""
    need("lm_eval", is_smoke=options.smoke)
    pairs, length, examples = (1, 2, 2_000) if options.smoke else (PAIRS, BLOCK, _EXAMPLES)
    small = SMALL_RUN if options.smoke else ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_task(folder / "tasks", examples)
        tasks = [*small, f"evaluation.harness.tasks={folder / 'tasks'}"]
        losses: list[float] = []
        evaluated = build(_settings(folder, "evaluated", 1, tasks))
        evaluated.subscribe(StepCompleted, lambda event: losses.append(event.outcome.loss))
        evaluated.run()
        trust = {"evaluation.harness.tasks": str(folder / "tasks")}
        process = EvaluateProcess(folder / "evaluated", ["own_words"], device="cpu", timeout_seconds=1e6, trust=trust)
        [step] = RunLayout(folder / "evaluated").durable_steps()
        process.start(step)
        try:
            _wait_until_it_evaluates(process, RunLayout(folder / "evaluated").suites / "log.txt")
            for child in psutil.Process().children(recursive=True):
                child.suspend()  # until its first block, so that it does not end before
            run = build(_settings(folder, "measured", (2 * pairs + 3) * length, small))
            blocks = Blocks(process, run, pairs, length)
            run.subscribe(StepCompleted, lambda event: losses.append(event.outcome.loss))
            run.subscribe(StepCompleted, blocks)
            run.run()
        finally:
            for child in psutil.Process().children(recursive=True):
                child.resume()
            process.stop()
    middle, low, high = interval_of_median(blocks.ratios())
    text = f"{middle:.3f}x [{low:.3f}, {high:.3f}]"
    name = f"time of a step beside an evaluation / without, median of {pairs} pairs [95 % interval]"
    return [
        Figure(name, text, f"<= {_ALLOWED}x (the interval reaches it)", low <= _ALLOWED),
        Figure("first loss alone, and beside an evaluation", *_equal(losses[0], losses[1]), is_equality=True),
    ]


def _equal(alone: float, beside: float) -> tuple[str, str, bool]:
    return f"{alone}, {beside}", "equal", alone == beside


def _settings(folder: Path, name: str, steps: int, more: Sequence[str]) -> TrainSettings:
    own = [f"run.dir={folder / name}", f"run.cache_dir={folder / 'cache'}", f"run.budget.steps={steps}"]
    quiet = ["evaluation.every=0", "evaluation.at_start=false", "state_store.every=0", "monitors=[jsonl]"]
    return load_settings([], [*own, *quiet, "optimizer.device=cpu", *more], {}).settings


def _write_task(folder: Path, number_of_examples: int) -> None:
    folder.mkdir()
    examples = folder / "examples.jsonl"
    with examples.open("w", encoding="utf-8") as file:
        for number in range(number_of_examples):
            file.write(json.dumps({"question": f"is {number} more than {number // 2}?", "answer": 0}) + "\n")
    (folder / "own.yaml").write_text(_TASK.format(examples=examples), encoding="utf-8")


def _wait_until_it_evaluates(process: EvaluateProcess, log: Path) -> None:
    """Wait for the first progress of the model; the imports and the export come before."""
    deadline = time.monotonic() + _SECONDS_TO_BEGIN
    while b"Running loglikelihood" not in log.read_bytes():
        if (outcome := process.outcome()) is not None or time.monotonic() > deadline:
            problem = "it did not begin in time" if outcome is None else outcome.problem
            message = f"the evaluation cannot be measured: {problem}"
            raise SystemExit(message)
        time.sleep(0.5)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(
        "suites",
        "The step of the default run on a CPU beside the process that evaluates a checkpoint of the same model with "
        "lm-evaluation-harness, on the CPU, at the lowest priority. The process runs during blocks of "
        f"{BLOCK} steps and is suspended during the blocks between them; each pair of blocks gives one ratio.",
        measure,
        ("torch", "lm-eval"),
    )
