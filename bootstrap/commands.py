"""What each command of the command line does."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bootstrap.environment import set_library_defaults
from bootstrap.launch import is_first_rank, launch, processes_to_start
from bootstrap.logging import configure_logging
from bootstrap.run import build
from bootstrap.run_folder import set_aside
from bootstrap.signals import StoppedAtOnce, stopping_on_signals
from configs.catalog import describe_settings
from configs.layers import load_settings
from configs.rendering import render
from domain.events import EvaluationCompleted, RunStarted
from domain.sampling import Sampling

if TYPE_CHECKING:
    import argparse

    from bootstrap.run import Run
    from domain.progress import Progress


def config(options: argparse.Namespace) -> int:
    """Print the resolved settings, or what can be set."""
    if options.describe:
        print(describe_settings())
        return 0
    print(render(load_settings(options.config, options.settings, os.environ)))
    return 0


def train(options: argparse.Namespace) -> int:
    """Train, or go on training, and show what came of it."""
    configure_logging()
    set_library_defaults()
    if not is_first_rank():
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  what there is to say is said once
    settings = load_settings(options.config, options.settings, os.environ).settings
    run = build(settings)
    if options.fresh and is_first_rank() and (target := set_aside(run.directory)) is not None:
        print(f"the old run is in {target}")
    if (num_processes := processes_to_start(settings)) > 1:
        print(f"training in {num_processes} processes on this machine", flush=True)
        return launch(_again(options), num_processes)
    report = _Report(run)
    try:
        with stopping_on_signals(run.request_stop):
            progress = run.run()
            if run.stopped_by is None or run.stopped_by.signal is None:
                report.show(progress)
                return 0
    except StoppedAtOnce as stop:
        print(f"{stop}: the same command goes on from the newest checkpoint, if there is one", file=sys.stderr)
        return 128 + stop.number
    where = run.newest_checkpoint()
    saved = f"at step {progress.step} with a checkpoint in {where}" if where else "before there was anything to save"
    print(f"stopped {saved}; the same command goes on")
    return 128 + run.stopped_by.signal


def _again(options: argparse.Namespace) -> list[str]:
    """Return the arguments of ``train`` for each of several processes; an old run has been set aside by then."""
    files = [argument for path in options.config for argument in ("--config", str(path))]
    return ["train", *files, *options.settings]


def prepare(options: argparse.Namespace) -> int:
    """Tokenize the data of a run ahead, and show what came of it."""
    configure_logging()
    set_library_defaults()
    from bootstrap.prepare import prepare_ahead

    settings = load_settings(options.config, options.settings, os.environ).settings
    location, prepared, rejected = prepare_ahead(settings)
    print(f"{prepared.tokens:,} tokens of {prepared.documents:,} documents, {prepared.source_bytes:,} bytes of data")
    if prepared.new_tokens:
        rate = prepared.new_tokens / max(prepared.seconds, 1e-3)
        print(f"{prepared.new_tokens:,} of them new, in {prepared.seconds:.1f} s: {rate:,.0f} tokens/s")
    else:
        print("all of them were there already")
    if rejected:
        print(f"{len(rejected):,} records were rejected, the first ones:")
        print("".join(f"    {record['reason']}\n" for record in rejected[:5]), end="")
    print(f"tokens: {location}")
    print(f"try next:   {shlex.join(['python', '-m', 'application', *_again(options)])}")
    return 0


def generate(options: argparse.Namespace) -> int:
    """Print a continued prompt."""
    configure_logging()
    set_library_defaults()
    from bootstrap.trained import open_trained

    sampling = Sampling(options.max_new_tokens, options.temperature, options.top_k, seed=options.seed)
    print(open_trained(options.run).generate(options.prompt, sampling))
    return 0


def export(options: argparse.Namespace) -> int:
    """Write a trained model as a folder of Hugging Face."""
    configure_logging()
    set_library_defaults()
    from bootstrap.export import export as write_model

    location = write_model(options.run, options.folder, merged=options.merged)
    print(f"{location} is in {options.folder}, as transformers loads it")
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Print a trained model's figures on its held-out documents."""
    configure_logging()
    set_library_defaults()
    from bootstrap.trained import open_trained

    trained = open_trained(options.run)
    evaluation = trained.evaluate()
    print(
        f"{trained.location} · {evaluation.bits_per_byte:.4f} bits per byte · {evaluation.loss:.4f} nats/token · "
        f"{evaluation.num_targets:,} tokens, {evaluation.num_bytes:,} bytes"
    )
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Print which checkpoints there are and whether they verify."""
    from bootstrap.inspection import inspect as look_into

    text, is_sound = look_into(options.path, hashing=not options.quick, as_json=options.json)
    print(text)
    return 0 if is_sound else 4


class _Report:
    """Gathers what a person wants to know at the end of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._began = time.monotonic()
        self._first_step = 0
        self._evaluation: EvaluationCompleted | None = None
        run.subscribe(RunStarted, self._on_start)
        run.subscribe(EvaluationCompleted, self._on_evaluation)

    def _on_start(self, event: RunStarted) -> None:
        self._first_step = event.progress.step

    def _on_evaluation(self, event: EvaluationCompleted) -> None:
        self._evaluation = event

    def show(self, progress: Progress) -> None:
        """Print how the run ended, a sample, and what to try next."""
        folder = self._run.directory
        if progress.step == self._first_step:
            print(f"{folder} is finished at step {progress.step}: nothing was left to train")
            print("another one: add --fresh or run.name=NAME; more of it: a larger run.budget.steps or .tokens")
        else:
            minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
            print(f"finished {progress.step} steps, {progress.tokens:,} tokens, {minutes}:{seconds:02d} in all")
        if self._evaluation is not None:
            figures = self._evaluation.evaluation
            print(f"held-out: {figures.bits_per_byte:.3f} bits per byte, {figures.loss:.3f} nats/token")
        chosen = self._run.settings.sample
        sampling = Sampling(chosen.max_new_tokens, chosen.temperature, chosen.top_k)
        print(f"\nsample:\n{_indented(self._run.sample(chosen.prompt, sampling))}\n")
        if (checkpoint := self._run.newest_checkpoint()) is not None:
            reader = "transformers" if getattr(self._run.settings.model, "lora", None) is None else "PEFT"
            print(f"checkpoint: {checkpoint}  ({reader} loads it as it is)")
        print(f"try next:   python -m application generate {folder} --prompt {chosen.prompt!r}")
        print(f"            python -m application evaluate {folder}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
