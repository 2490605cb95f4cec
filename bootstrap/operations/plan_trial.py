"""The trial of `plan`: the first steps of a run, in a process and a folder of their own, with their times."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.trace_samples import shown_rows
from holdfast.bootstrap.adapter_choice.process_group import is_first_rank, mesh_of
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal, end_with, guarded
from holdfast.bootstrap.process.json_log import configure_logging
from holdfast.bootstrap.process.launch import ending_with_launcher, launch, processes_to_start
from holdfast.bootstrap.process.library_environment import set_library_defaults
from holdfast.bootstrap.process.printing import fitting
from holdfast.bootstrap.process.process_age import process_age
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.run import Run
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.build.model import network_of
from holdfast.bootstrap.stages.choose.hardware import memory_limit_of
from holdfast.bootstrap.stages.fit.micro_batch import memory_of
from holdfast.configs.sections.ledger import NoLedgerSettings
from holdfast.configs.sections.monitors import JsonlMonitorSettings, ProfileSettings
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.commands import Evaluate, SaveCheckpoint
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.events import (
    CheckpointStarted,
    EvaluationCompleted,
    RunStarted,
    StepCompleted,
    TextGenerated,
)
from holdfast.domain.training.text_generation import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.step_outcome import Progress

MODULE = "holdfast.bootstrap.operations.plan_trial"
_MOST_STEPS = 200
_SECONDS = 4.0  # of steps, so that the times of very short ones are not those of a moment


@final
@dataclass(frozen=True, slots=True)
class PlanTrial:
    """The settings of a trial, its run folder, and the number of steps that it takes at least."""

    config: Sequence[str]
    settings: Sequence[str]
    folder: str
    steps: int

    def to_argument(self) -> str:
        """Return the trial as one argument of the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        """Return the trial of an argument that ``to_argument`` made."""
        return cls(**json.loads(argument))

    def measured_steps(self) -> Sequence[int]:
        """Return the steps after which the trial evaluates and saves.

        They are few and early: a save that goes on in the background slows the steps beside it, and would lengthen each
        of them if they are short.
        """
        return (max(1, self.steps // 2), self.steps)

    def facts(self, rank: int) -> Path:
        """Return the file of the facts that ``rank`` has measured."""
        folder = Path(self.folder)
        return folder.with_name(f"{folder.name}.facts-{rank}.json")


@final
@dataclass(slots=True)
class _Watch:
    """Collects the marks of a trial, and stops it: times are in Unix seconds."""

    run: Run
    trial: PlanTrial
    marks: list[tuple[str, int, float]] = field(default_factory=list)
    tokens: int = 0

    def subscribe(self) -> None:
        """Subscribe to the events that are measured."""
        self.run.subscribe(RunStarted, lambda event: self._mark("start", event.progress))
        self.run.subscribe(EvaluationCompleted, lambda event: self._mark("evaluation", event.progress))
        self.run.subscribe(TextGenerated, lambda event: self._mark("evaluation", event.progress))
        self.run.subscribe(CheckpointStarted, lambda event: self._mark("save", event.progress))
        self.run.subscribe(StepCompleted, self._on_step)

    def _on_step(self, event: StepCompleted) -> None:
        self._mark("step", event.progress)
        self.tokens = event.progress.tokens
        step, begin = event.progress.step, self.marks[0][2]
        if step in self.trial.measured_steps():
            for command in (Evaluate(), SaveCheckpoint()):
                self.run.request(command)
        is_long = time.time() - begin >= _SECONDS or step >= _MOST_STEPS
        if step >= self.trial.steps and is_long and is_first_rank():
            self.run.request_stop("the trial has measured its steps")

    def _mark(self, kind: str, progress: Progress) -> None:
        self.marks.append((kind, progress.step, time.time()))


def trial_settings(settings: TrainSettings, trial: PlanTrial) -> TrainSettings:
    """Return ``settings`` for the trial: the same run, whose watch asks for its evaluations and checkpoints.

    The folder differs, and archive, monitors, suites, profile, ledger, lineage and early stopping are off. The budget
    is the same, as compilation, the batch and the schedule depend on it.
    """
    changes: dict[str, Mapping[str, Any]] = {
        "run": {"dir": Path(trial.folder), "report": False},
        "state_store": {"every": 0, "keep": 1, "keep_every": 0, "keep_best": 0, "keep_hours": 0.0},
        "evaluation": {"every": 0, "suites": ()},
        "data": {"lineage": None},
        "recovery": {"early_stopping": settings.recovery.early_stopping.model_copy(update={"patience": 0})},
    }
    if isinstance(settings.state_store, DiskStateStoreSettings):
        changes["state_store"] = {**changes["state_store"], "archive": None, "disk_budget": None}
    sections = {name: dict(settings)[name].model_copy(update=update) for name, update in changes.items()}
    own = {"monitors": (JsonlMonitorSettings(),), "profile": ProfileSettings(), "ledger": NoLedgerSettings()}
    return settings.model_copy(update={**sections, **own})


def main(arguments: Sequence[str]) -> int:
    """Do the trial of ``arguments``, which hold one ``PlanTrial``; return the exit code."""
    return guarded(lambda: _train(arguments))


def _train(arguments: Sequence[str]) -> int:
    configure_logging()
    set_library_defaults()
    trial = PlanTrial.from_argument(arguments[0])
    settings = load_settings([Path(path) for path in trial.config], trial.settings, os.environ).settings
    if (num_processes := processes_to_start(settings)) > 1:
        return launch(arguments, num_processes, module=MODULE)
    run = Run(trial_settings(settings, trial), {}, report=_report)
    run.may_exit, run.seconds_before = True, process_age()
    watch = _Watch(run, trial)
    watch.subscribe()
    grace = settings.recovery.grace_seconds
    with stopping_on_signals(run.request_stop), ending_with_launcher(run.request_stop, grace):
        run.run()
    if run.stopped_by is not None and run.stopped_by.signal is not None:
        return code_of_signal(run.stopped_by.signal)
    assert run.parts is not None  # it has ended
    rank = run.parts.opened.process_group.rank
    if rank == 0:
        chosen = settings.sample
        run.sample(chosen.prompt, Sampling(chosen.max_new_tokens, chosen.temperature, chosen.top_k))  # as train does
    trial.facts(rank).write_text(json.dumps(_facts(run.parts, watch)), encoding="utf-8")
    return ExitCode.FINISHED


def _facts(parts: RunParts, watch: _Watch) -> Mapping[str, Any]:
    """Return what this rank has measured, and on the first rank what the run is."""
    trainable = parts.model.trainable
    peak, limit = trainable.memory_bytes(), memory_limit_of(parts.model.hardware.get("optimizer.device"))
    measured = {"peak_bytes": peak, "limit_bytes": limit, "device": trainable.hardware.device}
    if parts.opened.process_group.rank:
        return measured
    settings, stream = parts.settings, parts.rows.stream
    mesh = mesh_of(settings.distributed, parts.opened.process_group.size)
    rows_of_rank = -(-settings.optimizer.num_rows // mesh.data_ranks)
    estimate = memory_of(parts.model, parts.micro_batch, accumulates=parts.micro_batch < rows_of_rank)
    network = network_of(parts.model.model)
    trained = None if network is None else sum(each.numel() for each in network.parameters() if each.requires_grad)
    layout = RunLayout(parts.host.directory)
    newest = layout.checkpoint(layout.newest_durable_step())
    return {
        **measured,
        "marks": watch.marks,
        "tokens": watch.tokens,
        "parameters": trainable.hardware.num_parameters,
        "trained_parameters": trained,
        "precision": trainable.hardware.precision,
        "ranks": parts.opened.process_group.size,
        "formula": None if estimate is None else asdict(estimate),
        "micro_batch": parts.micro_batch,
        "rows": settings.optimizer.num_rows,
        "length": settings.data.row_length,
        "rows_there": stream.num_rows if isinstance(stream, CachedBatches) else None,
        "samples": stream.order()[1] if isinstance(stream, CachedBatches) else None,
        "checkpoint_bytes": _bytes_in(newest) if newest.is_dir() else None,
        "metrics_bytes": layout.metrics.stat().st_size if layout.metrics.exists() else 0,
        "sample": _shown(parts),
    }


def _shown(parts: RunParts) -> Sequence[Any]:
    """Return the first packed row of the run, as its documents, each as parts of text and whether it is trained on."""
    batches = parts.rows.stream.batches(Cursor())
    try:
        return shown_rows(next(batches), parts.rows.data.tokenizer, 1)
    finally:
        batches.close()


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _report(line: str) -> None:
    if is_first_rank():
        sys.stdout.write(f"{fitting(f'  {line}')}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
