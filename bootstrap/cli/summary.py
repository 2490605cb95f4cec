"""The summary that a run prints at its end."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.operations.trust import asked_trust
from holdfast.bootstrap.process.printing import fitting, short
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.wiring.goodput_accounting import sentence_of
from holdfast.bootstrap.wiring.screen import phases_shown
from holdfast.domain.counting import counted
from holdfast.domain.events import EvaluationCompleted, RunStarted
from holdfast.domain.training.text_generation import Sampling

if TYPE_CHECKING:
    from holdfast.bootstrap.run import Run
    from holdfast.domain.training.progress import Progress


@final
class Report:
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
        if progress.step == self._first_step and self._run.stopped_by is None:
            print(f"{folder} is finished at step {progress.step}: nothing was left to train")
            print(
                fitting("another one: add --fresh or run.name=NAME; more of it: a larger run.budget.steps or .tokens")
            )
        else:
            minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
            spent = f"{progress.tokens:,} tokens, {minutes}:{seconds:02d} in all"
            print(fitting(f"{self._ending(progress)}, {spent}"))
            if (goodput := self._run.goodput).starts:  # which the first rank alone knows
                print(fitting(sentence_of(goodput)))
        if self._evaluation is not None:
            figures = self._evaluation.evaluation
            print(f"held-out: {figures.bits_per_byte:.3f} bits per byte, {figures.loss:.3f} nats/token")
        chosen = self._run.settings.sample
        sampling = Sampling(chosen.max_new_tokens, chosen.temperature, chosen.top_k)
        notes: list[str] = []
        with phases_shown() as show:
            show("writing a sample")
            sample = self._run.sample(chosen.prompt, sampling, note=notes.append)
        print("".join(f"{fitting(note)}\n" for note in notes), end="")
        print(f"\nsample:\n{_indented(sample)}\n")
        if (checkpoint := self._run.newest_checkpoint()) is not None:
            reader = "transformers" if self._run.settings.model.lora is None else "PEFT"
            print(fitting(f"checkpoint: {short(checkpoint)}  (for {reader})"))
        self._propose(chosen.prompt)

    def _propose(self, prompt: str) -> None:
        """Print the commands to try next, with what a person has to say again of what this run trusts."""
        folder = str(self._run.directory)
        trust = [word for asked in asked_trust(self._run.settings).items() for word in ("--trust", "=".join(asked))]
        text = [f"--prompt={prompt}"] if prompt.startswith("-") else ["--prompt", prompt]
        print(f"try next:   {shlex.join([*called_as(), 'generate', folder, *text, *trust])}")
        data = self._run.settings.data
        if data.holdout or data.folds is not None:  # else there is nothing to evaluate on
            print(f"            {shlex.join([*called_as(), 'evaluate', folder, *trust])}")

    def _ending(self, progress: Progress) -> str:
        """Return whether the budget was spent, or what ended the run before that."""
        stop = self._run.stopped_by
        if stop is None:
            return f"finished {counted(progress.step, 'step')}"
        budget = self._run.settings.run.budget.steps
        whole = f" of {budget:,}" if budget is not None else ""
        return f"stopped after step {progress.step:,}{whole} ({stop.reason})"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
