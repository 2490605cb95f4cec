"""A study of Optuna, in a journal file."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, final

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial
from typing_extensions import override

from holdfast.adapters.shared.files.file_lock import lock, locked, open_lock
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.regular_file import end_of_lines, regular
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.tuning.search_space import Choices, FloatRange, IntRange
from holdfast.domain.tuning.trial import Trial, TrialState
from holdfast.ports.study import Study

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from holdfast.domain.tuning.search_space import Dimension, SearchSpace, Value
    from holdfast.domain.tuning.trial import TrialEnd

SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler", "gp": "GPSampler"}
PRUNERS = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
}
GRID = "grid"
_NAME = "holdfast"  # of every study, since the brackets of Hyperband depend on it
_TOKENS, _NOTE = "tokens", "note"
_STATES = {
    OptunaState.WAITING: TrialState.RUNNING,
    OptunaState.RUNNING: TrialState.RUNNING,
    OptunaState.COMPLETE: TrialState.COMPLETE,
    OptunaState.PRUNED: TrialState.PRUNED,
    OptunaState.FAIL: TrialState.FAILED,
}
_ENDS = {TrialState.COMPLETE: OptunaState.COMPLETE, TrialState.PRUNED: OptunaState.PRUNED}


@final
@dataclass(frozen=True, slots=True)
class SearchRules:
    """The names of a sampler and a pruner, in ``SAMPLERS`` (or ``GRID``) and ``PRUNERS``, with their arguments."""

    sampler: str = "tpe"
    pruner: str = "median"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    pruner_options: Mapping[str, Any] = field(default_factory=dict)

    def make_sampler(self, seed: int) -> BaseSampler | None:
        """Return the sampler, None for a grid; raises ``ConfigurationError`` if it does not take its options."""
        if self.sampler == GRID:
            return None
        options = {"seed": seed, **self.sampler_options}
        made: BaseSampler = _made("sampler", self.sampler, vars(optuna.samplers)[SAMPLERS[self.sampler]], options)
        return made

    def make_pruner(self) -> BasePruner:
        """Return the pruner; raises ``ConfigurationError`` if it does not take its options."""
        made: BasePruner = _made("pruner", self.pruner, vars(optuna.pruners)[PRUNERS[self.pruner]], self.pruner_options)
        return made


@final
class OptunaStudy(Study):
    """A study of ``space`` in the file ``journal``, which Optuna's own tools read.

    The sampler and the pruner are made anew for each decision, from ``seed`` and the number of the trial, and see a
    copy of the study that holds only the trials on which the decision may depend.
    """

    def __init__(
        self,
        journal: Path,
        space: SearchSpace,
        rules: SearchRules,
        seed: int = 0,
        parallel: int = 1,
        *,
        maximizes: bool = False,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._journal = journal
        self._space = space
        self._distributions = {name: _distribution(each) for name, each in space.dimensions.items()}
        self._rules = rules
        self._seed = seed
        self._parallel = parallel
        self._direction: Literal["minimize", "maximize"] = "maximize" if maximizes else "minimize"
        with self._reading():
            self._storage = JournalStorage(JournalFileBackend(str(journal), JournalLock(journal)))
            study = optuna.create_study(
                storage=self._storage, study_name=_NAME, direction=self._direction, load_if_exists=True
            )
            self._study = study._study_id  # noqa: SLF001  the storage knows studies by this number only

    @property
    @override
    def parallel(self) -> int:
        """Return the number of trials that may train at once."""
        return self._parallel

    @override
    def trials(self) -> Sequence[Trial]:
        """Return all trials."""
        return [self._plain(trial) for trial in self._frozen()]

    @override
    def add(self, number: int) -> None:
        """Add a trial."""
        with self._reading(), locked(open_lock(self._journal.with_name(f".{self._journal.name}.add"))):
            num_trials = len(self._frozen())
            assert number <= num_trials, "the next trial"
            if number == num_trials:
                self._storage.create_new_trial(self._study)

    @override
    def suggest(self, number: int) -> Mapping[str, Value]:
        """Return the parameters of a trial, and make those of earlier trials that have none yet."""
        frozen = self._frozen()
        for earlier in range(number + 1):
            if self._lacks_parameters(frozen[earlier]):
                suggestion = self._suggest(frozen, earlier)
                with self._reading():
                    for name, distribution in self._distributions.items():
                        value = distribution.to_internal_repr(suggestion[name])
                        self._storage.set_trial_param(frozen[earlier]._trial_id, name, value, distribution)  # noqa: SLF001
                frozen = self._frozen()
        return self._parameters(frozen[number])

    @override
    def report(self, number: int, step: int, value: float) -> bool:
        """Record a measurement; return whether the pruner stops the trial."""
        trial = self._frozen()[number]
        if step not in trial.intermediate_values:
            with self._reading():
                self._storage.set_trial_intermediate_value(trial._trial_id, step, float(value))  # noqa: SLF001
        return self._judge(number, step)[0]

    @override
    def finish(self, number: int, end: TrialEnd) -> None:
        """Record the end of a trial, and the marks that the pruner has left on it, for later trials."""
        trial = self._frozen()[number]
        if trial.state.is_finished():
            return
        identity = trial._trial_id  # noqa: SLF001
        marks = self._judge(number, trial.last_step)[1] if trial.last_step is not None else {}
        with self._reading():
            for name, mark in marks.items():
                self._storage.set_trial_system_attr(identity, name, mark)
            self._storage.set_trial_user_attr(identity, _TOKENS, end.tokens)
            self._storage.set_trial_user_attr(identity, _NOTE, end.note)
            has_value = end.state in _ENDS and end.value is not None and math.isfinite(end.value)
            values = [float(end.value or 0.0)] if has_value else None
            self._storage.set_trial_state_values(identity, _ENDS.get(end.state, OptunaState.FAIL), values)

    @override
    def close(self) -> None:
        """Do nothing: the file is open during a call only."""

    def _frozen(self) -> list[FrozenTrial]:
        with self._reading():
            return self._storage.get_all_trials(self._study, deepcopy=False)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            msg = f"the journal {self._journal} cannot be used, {explain(error)}"
            raise StateError(msg) from error
        except (ValueError, KeyError, TypeError) as error:
            msg = f"the journal {self._journal} is damaged ({type(error).__name__}: {error}): set the study aside "
            msg += "with tune --fresh"
            raise StateError(msg) from error

    def _lacks_parameters(self, trial: FrozenTrial) -> bool:
        return not self._distributions.keys() <= trial.params.keys()

    def _suggest(self, frozen: Sequence[FrozenTrial], number: int) -> Mapping[str, Value]:
        if self._rules.sampler == GRID:
            return self._space.point(number)
        view = self._view(frozen, number)
        parameters: Mapping[str, Value] = view.ask(self._distributions).params
        return parameters

    def _judge(self, number: int, last: int) -> tuple[bool, Mapping[str, Any]]:
        """Return whether trial ``number`` is to be pruned at step ``last``, and the marks that the pruner leaves on it.

        All its measurements until then are judged anew, in their order.
        """
        frozen = self._frozen()
        trial, pruner, is_pruned = frozen[number], self._rules.make_pruner(), False
        storage = InMemoryStorage()
        view = self._view(frozen, number, storage)
        view.add_trial(_without_results(trial))
        identity = storage.get_trial_id_from_study_id_trial_number(view._study_id, number)  # noqa: SLF001
        for step, value in sorted(trial.intermediate_values.items()):
            if step <= last:
                storage.set_trial_intermediate_value(identity, step, value)
                is_pruned = pruner.prune(view, storage.get_trial(identity))
        return is_pruned, storage.get_trial(identity).system_attrs

    def _view(self, frozen: Sequence[FrozenTrial], number: int, storage: InMemoryStorage | None = None) -> optuna.Study:
        """Return a copy of the study as trial ``number`` may see it: of trials beside it only the parameters."""
        view = optuna.create_study(
            storage=storage or InMemoryStorage(),
            study_name=_NAME,
            direction=self._direction,
            sampler=self._sampler(number),
            pruner=self._rules.make_pruner(),
        )
        for trial in frozen[:number]:
            if trial.number <= number - self._parallel:
                view.add_trial(trial)
            else:
                view.add_trial(_without_results(trial))
        return view

    def _sampler(self, number: int) -> BaseSampler | None:
        seed = int.from_bytes(sha256(f"{self._seed}:{number}".encode()).digest()[:4], "little")
        return self._rules.make_sampler(seed)

    def _plain(self, trial: FrozenTrial) -> Trial:
        return Trial(
            trial.number,
            _STATES[trial.state],
            None if self._lacks_parameters(trial) else self._parameters(trial),
            dict(sorted(trial.intermediate_values.items())),
            trial.value,
            int(trial.user_attrs.get(_TOKENS, 0)),
            str(trial.user_attrs.get(_NOTE, "")),
        )

    def _parameters(self, trial: FrozenTrial) -> Mapping[str, Value]:
        return {name: trial.params[name] for name in self._distributions}


def _without_results(trial: FrozenTrial) -> FrozenTrial:
    return create_trial(state=OptunaState.RUNNING, params=trial.params, distributions=trial.distributions)


def _distribution(dimension: Dimension) -> BaseDistribution:
    match dimension:
        case FloatRange(low, high, is_log, step):
            last = dimension.values[-1] if step is not None and dimension.values else high
            return FloatDistribution(low, float(last), log=is_log, step=step)
        case IntRange(low, high, is_log, step):
            return IntDistribution(low, int(dimension.values[-1]), log=is_log, step=step)
        case Choices(options):
            return CategoricalDistribution(options)


def _made(what: str, kind: str, of: Any, options: Mapping[str, Any]) -> Any:
    try:
        return of(**options)
    except ImportError as error:
        msg = f"tune.{what}={kind} needs another package: {error}"
        raise ConfigurationError(msg) from error
    except (TypeError, ValueError) as error:
        msg = f"tune.{what}_options do not fit tune.{what}={kind}: {error}"
        raise ConfigurationError(msg) from error


@final
class JournalLock(JournalFileOpenLock):
    """Lets one process at a time append to the file ``journal``, and removes the line that a kill left incomplete.

    This lock belongs to the operating system and ends with the process. The locks of the library are files that a
    killed process leaves behind, and a line after an incomplete one makes the whole file unreadable for it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._descriptor = -1

    @override
    def acquire(self) -> bool:
        """Wait for the lock; raises ``OSError``."""
        self._descriptor = lock(open_lock(self._journal.with_name(f".{self._journal.name}.lock")), waits=True)
        try:
            _remove_incomplete_line(self._journal)
        except BaseException:
            self.release()
            raise
        return True

    @override
    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
        self._descriptor = -1


def _remove_incomplete_line(path: Path) -> None:
    """Cut the file after its last line break; a file that does not exist is left alone."""
    try:
        descriptor = regular(str(path), os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(descriptor).st_size
        end = end_of_lines(descriptor, size)
        if end < size:
            os.ftruncate(descriptor, end)
    finally:
        os.close(descriptor)
