"""The facts about a study that its report and its summary show."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.run_folder.study_folder import StudyLayout, read_study
from holdfast.configs.sections.tune import TuneSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.tuning.search_space import SearchSpace
from holdfast.domain.tuning.trial import TrialState, best_of_trials

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.bootstrap.run_folder.study_folder import StudyRecord
    from holdfast.domain.tuning.trial import Trial
    from holdfast.ports.study import Study


@final
@dataclass(frozen=True, slots=True)
class StudyFacts:
    """A study as it is now: its search, its space, its trials, and the best one, None if none is complete."""

    root: Path
    search: TuneSettings
    seed: int
    parallel: int
    space: SearchSpace
    trials: Sequence[Trial]
    written: str

    @property
    def best(self) -> Trial | None:
        """Return the best trial, None if none is complete."""
        return best_of_trials(self.trials, maximizes=is_higher_better(self.search.metric))

    @property
    def counts(self) -> str:
        """Return the number of trials in each state, in words."""
        by_state = Counter(trial.state for trial in self.trials)
        parts = [f"{by_state[state]} {state}" for state in TrialState if by_state[state]]
        return f"{len(self.trials)} ({', '.join(parts)})" if parts else "0"

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        return {
            "study": str(self.root),
            "metric": self.search.metric,
            "sampler": self.search.sampler,
            "pruner": self.search.pruner,
            "seed": self.seed,
            "parallel": self.parallel,
            "space": self.space.to_json(),
            "best": None if self.best is None else _as_json(self.root, self.best),
            "trials": [_as_json(self.root, trial) for trial in self.trials],
        }


def is_study(root: Path) -> bool:
    """Return whether ``root`` is the folder of a study."""
    return StudyLayout(root).record.is_file()


def study_facts(root: Path) -> StudyFacts:
    """Return the facts about the study in ``root``.

    Raises ``StateError`` if it cannot be read, and ``ConfigurationError`` without the extra ``tune``.
    """
    record = read_study(root)
    search = TuneSettings.model_validate(record.settings["tune"])
    study = open_study(root, record, search)
    written = datetime.now(UTC).isoformat(timespec="seconds")
    space = SearchSpace.from_json(record.space)
    return StudyFacts(root, search, record.seed, record.parallel, space, study.trials(), written)


def _as_json(root: Path, trial: Trial) -> dict[str, Any]:
    record = asdict(trial)
    measured = [[step, _finite(value)] for step, value in trial.measurements.items()]
    return {
        **record,
        "state": str(trial.state),
        "measurements": measured,
        "run": str(StudyLayout(root).trial(trial.number)),
    }


def _finite(value: float) -> float | str:
    return value if value - value == 0 else str(value)


MISSING = 'tune needs another package: pip install "holdfast-lm[tune]"'


def search_rules(chosen: TuneSettings) -> Any:
    """Return the rules of a search, whose sampler and pruner take their options.

    Raises ``ConfigurationError`` without the extra ``tune``, and for options that do not fit.
    """
    try:
        rules = lazy("holdfast.adapters.study.optuna:SearchRules")(
            chosen.sampler, chosen.pruner, chosen.sampler_options or {}, chosen.pruner_options or {}
        )
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    rules.make_sampler(0)
    rules.make_pruner()
    return rules


def open_study(root: Path, record: StudyRecord, chosen: TuneSettings) -> Study:
    """Return the study in the folder ``root``, with the sampler and the pruner of ``chosen``.

    Raises the errors of ``search_rules``, and ``StateError`` if the study cannot be read.
    """
    rules, space = search_rules(chosen), SearchSpace.from_json(record.space)
    study: Study = lazy("holdfast.adapters.study.optuna:OptunaStudy")(
        StudyLayout(root).journal,
        space,
        rules,
        record.seed,
        record.parallel,
        maximizes=is_higher_better(chosen.metric),
    )
    return study
