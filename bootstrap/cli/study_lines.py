"""The lines that a study prints while it runs, and its summary."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.process.printing import fitting, short
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.process.text_table import aligned
from holdfast.bootstrap.run_folder.study_folder import StudyLayout
from holdfast.configs.space_file import words_of
from holdfast.domain.errors import StateError
from holdfast.domain.sizes import counted
from holdfast.domain.tuning.trial import TrialState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bootstrap.operations.study_facts import StudyFacts
    from holdfast.bootstrap.operations.tune_study import TuneStudy
    from holdfast.domain.tuning.search_space import Value
    from holdfast.domain.tuning.trial import TrialEnd, TrialVerdict


@final
class StudyLines:
    """Reports what happens to the trials of ``study``, line by line; a ``StudyWatcher``.

    ``on_end`` is called after the end of each trial.
    """

    def __init__(self, study: TuneStudy, report: Callable[[str], object], on_end: Callable[[], object]) -> None:
        self._study = study
        self._report = report
        self._on_end = on_end
        self._metric = study.settings.tune.metric

    def begin(self) -> None:
        """Report which study begins or continues."""
        tune, trials = self._study.settings.tune, self._study.study.trials()
        ended = sum(trial.has_ended for trial in trials)
        done = f", {counted(ended, 'trial')} done" if trials else ""
        self._say(
            f"study {short(str(self._study.root))}{done}: sampler {tune.sampler}, pruner {tune.pruner}, at most "
            f"{counted(self._study.study.parallel, 'trial')} at once"
        )

    def on_begin(self, number: int, parameters: Mapping[str, Value]) -> None:
        """Report the parameters of a trial that begins or continues."""
        self._say(f"trial {number}: {' '.join(words_of(parameters))}")

    def on_measurement(self, number: int, step: int, value: float, verdict: TrialVerdict) -> None:
        """Report an evaluation."""
        end = "" if verdict.reason is None else ", to be pruned"
        self._say(f"trial {number}, step {step}: {self._metric} {value:.6g}{end}")

    def on_end(self, number: int, end: TrialEnd) -> None:
        """Report the end of a trial."""
        match end.state:
            case TrialState.COMPLETE:
                best = self._study.best
                words = ", the best so far" if best is not None and best.number == number else ""
                self._say(f"trial {number} is complete: {self._metric} {end.value:.6g}{words}")
            case TrialState.PRUNED:
                self._say(
                    f"trial {number} was {end.note}" if end.note.startswith("pruned") else f"trial {number}: {end.note}"
                )
            case _:
                self._say(f"trial {number} failed: {end.note}")
        try:
            self._on_end()
        except StateError as error:  # the search goes on without its report
            self._say(str(error))

    def _say(self, line: str) -> None:
        self._report(fitting(line))


def summary_of(facts: StudyFacts, *, is_over: bool) -> str:
    """Return the summary of a study for a person."""
    layout = StudyLayout(facts.root)
    rows = [("study", short(str(facts.root))), ("trials", facts.counts)]
    if not is_over:
        rows.append(("end", "stopped; the same command continues"))
    if (best := facts.best) is not None:
        rows.append(("best", f"trial {best.number}, {facts.search.metric} {best.value:.6g}"))
        rows += [("", word) for word in words_of(best.parameters or {})]
        rows.append(("settings", short(str(layout.best))))
    rows.append(("report", short(str(layout.report))))
    if best is not None:
        rows.append(("try next", shlex.join([*called_as(), "train", "--config", short(str(layout.best))])))
    return "\n" + aligned(rows, whole=("try next",))
