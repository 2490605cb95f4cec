"""The summary that a run prints at its end."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from holdfast.application.data.rejected_records import counts_of, lost_line, reason_of
from holdfast.application.handlers.log_events import first_metrics
from holdfast.bootstrap.process.printing import fitting, short, visible
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.process.text_table import aligned
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.attach.run_records import sentence_of
from holdfast.bootstrap.stages.attach.suite_process import asked_trust
from holdfast.bootstrap.stages.open_run.record_files import rejected_in
from holdfast.bootstrap.stages.open_run.screen import phases_shown
from holdfast.domain.events import (
    DataEnded,
    EvaluationCompleted,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    SuiteEvaluated,
    SuiteFailed,
)
from holdfast.domain.run_end import LifecycleState, RunEnd
from holdfast.domain.sizes import counted
from holdfast.domain.training.text_generation import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.run import Run
    from holdfast.domain.training.step_outcome import Progress


@final
class Report:
    """Collects the figures for the summary at the end of a run.

    If ``is_quiet``, nothing but JSON is printed, and no phase is shown. ``written`` is the report of the run, None
    without one.
    """

    def __init__(self, run: Run, *, is_quiet: bool = False) -> None:
        self._run = run
        self._is_quiet = is_quiet
        self._began = time.monotonic()
        self._first: Progress | None = None
        self._training = 0.0
        self._seconds = 0.0
        self._waited = 0.0
        self._step: StepCompleted | None = None
        self._evaluation: EvaluationCompleted | None = None
        self._suites: SuiteEvaluated | SuiteFailed | None = None
        self._end = RunEnd()
        self.written: Path | None = None
        run.subscribe(DataEnded, self._end.add)
        run.subscribe(StopRequested, self._end.add)
        run.subscribe(RunStarted, self._on_start)
        run.subscribe(StepCompleted, self._on_step)
        run.subscribe(EvaluationCompleted, self._on_evaluation)
        run.subscribe(SuiteEvaluated, self._on_suite)
        run.subscribe(SuiteFailed, self._on_suite)
        run.subscribe(RunFinished, self._on_end)

    def _on_start(self, event: RunStarted) -> None:
        self._first, self._training = event.progress, time.monotonic()

    def _on_step(self, event: StepCompleted) -> None:
        self._step = event  # its loss is read at the end only: a GPU would be waited for

    def _on_evaluation(self, event: EvaluationCompleted) -> None:
        self._evaluation = event

    def _on_suite(self, event: SuiteEvaluated | SuiteFailed) -> None:
        self._waited += event.stall_seconds
        self._suites = event

    def _on_end(self, _: RunFinished) -> None:
        self._seconds = time.monotonic() - self._training - self._waited

    def show(self, progress: Progress) -> None:
        """Print a sample, the end of the run and its figures, and the commands to try next."""
        if self._is_quiet:
            return
        notes: list[str] = []
        sample = self._sample(notes)
        print("".join(f"{fitting(note)}\n" for note in notes), end="")
        print(f"\nsample:\n{visible(_indented(sample))}\n")
        rows = [*self._rows(progress), *self._next_rows(progress)]
        print(aligned(rows, whole=("try next",)))

    def as_data(self, progress: Progress) -> Mapping[str, Any]:
        """Return the summary as a JSON object."""
        figures = self._figures(progress)
        if self._run.stopped_by is None or self._run.stopped_by.signal is None:
            figures |= {"sample": self._sample([]), "try_next": self._next_commands(progress)}
        return figures

    def _sample(self, notes: list[str]) -> str:
        chosen = self._run.settings.sample
        sampling = Sampling(chosen.max_new_tokens, chosen.temperature, chosen.top_k)
        with phases_shown(is_quiet=self._is_quiet) as show:
            show("writing a sample")
            return self._run.sample(chosen.prompt, sampling, note=notes.append)

    def _rows(self, progress: Progress) -> Sequence[tuple[str, str]]:
        """Return the figures for a person, with a key for each."""
        figures = self._figures(progress)
        rows = [("run", short(figures["run"])), ("end", figures["end"])]
        if self._has_trained(progress):
            rows += [("steps", f"{progress.step:,}")] if self._run.stopped_by is not None else []
            rows += [("tokens", f"{progress.tokens:,}")]
            unit = "pair" if self._run.settings.data.holds_pairs else "token"
            if isinstance(figures["loss"], float):  # unlike that of the progress line, which is smoothed
                rows.append(("loss", f"{figures['loss']:.3f} nats/{unit} in the last step"))
        rows += self._evaluation_rows()
        if self._has_trained(progress):
            minutes, seconds = divmod(int(figures["seconds"]), 60)
            rows += [("speed", f"{figures['tokens_per_second']:,.0f} tokens/s")] if figures["tokens_per_second"] else []
            rows += [("time", f"{minutes}:{seconds:02d}")]
            if (goodput := self._run.goodput).starts:  # which the first rank alone knows
                rows.append(("goodput", sentence_of(goodput).removeprefix("goodput: ")))
        if (best := figures["best"]) is not None:
            where = short(best["checkpoint"]) if best["checkpoint"] else "without a checkpoint"
            rows.append(("best", f"{where}  ({best['metric']} {best['value']:.4f} at step {best['step']:,})"))
        if figures["checkpoint"] is not None:
            reader = "transformers" if self._run.settings.model.lora is None else "PEFT"
            rows.append(("checkpoint", f"{short(figures['checkpoint'])}  (for {reader})"))
        rows += [("left out", line) for line in _left_out(RunLayout(self._run.directory))]
        if self.written is not None:
            rows.append(("report", short(str(self.written))))
        return rows

    def _evaluation_rows(self) -> Iterator[tuple[str, str]]:
        if self._evaluation is not None:
            yield "evaluation", ", ".join(self._evaluation.evaluation.words(3))
        if isinstance(self._suites, SuiteEvaluated):
            yield "suites", f"{first_metrics(self._suites.results)} at step {self._suites.step:,}"
        elif self._suites is not None:
            yield "suites", f"step {self._suites.step:,} was not evaluated: {self._suites.problem}"

    def _figures(self, progress: Progress) -> dict[str, Any]:
        """Return the figures for programs, under the names of the metrics."""
        goodput, first, stop = self._run.goodput, self._first, self._run.stopped_by
        taken = progress.tokens - (first.tokens if first else 0)
        loss = self._step.outcome.loss if self._step is not None else None
        evaluated = {} if self._evaluation is None else self._evaluation.evaluation.metrics
        return {
            "run": str(self._run.directory),
            "state": self._end.at_finish.value,
            "end": self._ending(progress),
            "reason": None if stop is None else stop.reason,
            "step": progress.step,
            "steps_taken": progress.step - (first.step if first else 0),
            "tokens": progress.tokens,
            "loss": _plain(loss),
            "eval_loss": None,
            "eval_bits_per_byte": None,
            **{name: _plain(value) for name, value in evaluated.items()},
            "suites": None if self._suites is None else _figures_of(self._suites),
            "seconds": round(time.monotonic() - self._began, 3),
            "tokens_per_second": round(taken / self._seconds, 1) if taken and self._seconds else None,
            "goodput": round(goodput.share, 4) if goodput.starts else None,
            "best": self._run.best_checkpoint(progress),
            "checkpoint": self._run.newest_checkpoint(),
            "report": None if self.written is None else str(self.written),
        }

    def _has_trained(self, progress: Progress) -> bool:
        return self._first is None or progress.step > self._first.step

    def _ending(self, progress: Progress) -> str:
        """Return a phrase for the end of the run: the budget was spent, or the reason of an earlier stop."""
        stop, patience = self._run.stopped_by, progress.patience
        if stop is None:
            if self._has_trained(progress):
                return f"finished {counted(progress.step, 'step')}"
            place = "run.name=NAME" if self._run.settings.run.dir is None else "run.dir=FOLDER"
            return (
                f"the run is finished at step {progress.step}: nothing was left to train; another one: add --fresh or "
                f"{place}; more of it: a larger {self._limit(progress)}"
            )
        budget = self._run.parts.plan.budget.steps if self._run.parts is not None else None
        whole = f" of {budget:,}" if budget is not None else ""
        if self._end.at_finish is LifecycleState.FINISHED:
            return f"finished after step {progress.step:,}{whole}: {stop.reason}"
        if not stop.is_early or patience is None:
            return f"stopped after step {progress.step:,}{whole} ({stop.reason})"
        again = "" if self._has_trained(progress) else ", before this start"
        return (
            f"stopped early after step {progress.step:,}{whole}{again}: {patience}; to train on, raise "
            "recovery.early_stopping.patience or set it to 0"
        )

    def _limit(self, progress: Progress) -> str:
        """Return the setting that ended the run at ``progress``."""
        budget = self._run.settings.run.budget
        if budget.steps is not None and progress.step >= budget.steps:
            return "run.budget.steps"
        if budget.tokens is not None and progress.tokens >= budget.tokens:
            return "run.budget.tokens"
        return "data.epochs" if budget.minutes is None else "run.budget.minutes"

    def _next_rows(self, progress: Progress) -> Sequence[tuple[str, str]]:
        first, *others = self._next_commands(progress)
        return [("try next", first), *(("", other) for other in others)]

    def _next_commands(self, progress: Progress) -> Sequence[str]:
        """Return the commands to try next, with the options that repeat the code which this run trusts."""
        folder, prompt = str(self._run.directory), self._run.settings.sample.prompt
        trust = [word for asked in asked_trust(self._run.settings).items() for word in ("--trust", "=".join(asked))]
        choice = ["--best", *trust] if self._has_better(progress) else trust
        text = [f"--prompt={prompt}"] if prompt.startswith("-") else ["--prompt", prompt] if prompt else []
        commands = [shlex.join([*called_as(), "generate", folder, *text, *choice])]
        data = self._run.settings.data
        if data.task in ("chat", "preference"):
            commands.insert(0, shlex.join([*called_as(), "chat", folder, "--terminal", *choice]))
        if data.holdout or data.folds is not None:  # else there is nothing to evaluate on
            commands.append(shlex.join([*called_as(), "evaluate", folder, *choice]))
        return commands

    def _has_better(self, progress: Progress) -> bool:
        """Return whether early stopping has ended the run, and an earlier checkpoint is the best one."""
        if self._run.stopped_by is None or not self._run.stopped_by.is_early:
            return False
        best = self._run.best_checkpoint(progress)
        return best is not None and best["checkpoint"] is not None and best["step"] != progress.step


def _figures_of(event: SuiteEvaluated | SuiteFailed) -> dict[str, Any]:
    """Return the results of the last evaluation by suites, or why there are none, as plain data."""
    if isinstance(event, SuiteFailed):
        return {"step": event.step, "results": None, "problem": event.problem}
    results = {
        task: {name: _plain(value) for name, value in figures.items()} for task, figures in event.results.items()
    }
    return {"step": event.step, "results": results, "problem": None}


def _left_out(layout: RunLayout) -> Iterator[str]:
    """Yield what a run has left out: records that are listed, and files that were not read to their end."""
    listed = list(rejected_in(layout))
    for reason, count, remedy in counts_of(Counter(map(reason_of, listed))):
        yield f"{counted(count, 'record')}: {reason}{remedy}"
    if (line := lost_line(listed)) is not None:
        yield line


def failure_of(run: Run, error: Exception) -> Mapping[str, str]:
    """Return the JSON object about a run that ``error`` has ended."""
    return {"run": str(run.directory), "state": LifecycleState.FAILED.value, "error": str(error)}


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _plain(value: float | None) -> float | str | None:
    """Return ``value`` for JSON, which has no numbers for NaN and infinity."""
    return value if value is None or math.isfinite(value) else str(value)


_SECONDS = 10.0
_SECONDS_AFTER_SIGNAL = 2.0


@final
class EndReport:
    """Writes ``report.html`` when ``run`` has ended, unless ``run.report`` is off or this is not the first rank.

    A start that is refused, because another process trains the run or a setting would make another run, writes none.
    ``path`` is the file once it is written.
    """

    def __init__(self, run: Run, *, is_first_rank: bool) -> None:
        self._run = run
        self._is_wanted = is_first_rank and run.settings.run.report
        self.path: Path | None = None

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write the report at the end of this context and after an error, but not if the process is told to end now."""
        try:
            yield
        except Exception:
            self._write()
            raise
        self._write()

    def _write(self) -> None:
        if not self._is_wanted or not self._run.has_folder:
            return
        from holdfast.bootstrap.web.report_html import write_at_end

        stop = self._run.stopped_by
        seconds = _SECONDS if stop is None or stop.signal is None else _SECONDS_AFTER_SIGNAL
        self.path = write_at_end(self._run.directory, _say, seconds)


def _say(line: str) -> None:
    print(fitting(line, sys.stderr), file=sys.stderr)
