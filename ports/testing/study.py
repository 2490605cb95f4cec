"""The contract of ``Study``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from holdfast.domain.tuning.search_space import Choices, FloatRange, IntRange, SearchSpace
from holdfast.domain.tuning.trial import TrialEnd, TrialState, may_begin, seen_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.domain.tuning.search_space import Value
    from holdfast.ports.study import Study

SPACE = SearchSpace(
    {
        "rate": FloatRange(1e-4, 1e-1, is_log=True),
        "layers": IntRange(2, 8, step=2),
        "decay": FloatRange(0.0, 0.3, step=0.1),
        "kind": Choices(("cosine", "[1, 2]", "null")),
    }
)
"""A space with every kind of setting."""

_STEPS = (10, 20, 30)


def result_of(parameters: Mapping[str, Value], step: int) -> float:
    """Return the measurement of an imaginary training: a smooth function of the parameters that falls by each step."""
    rate, layers = float(parameters["rate"]), float(parameters["layers"])
    kinds = {"cosine": 0.0, "[1, 2]": 0.3, "null": 0.6}
    return (math.log10(rate) + 2.5) ** 2 + layers / 20 + kinds[str(parameters["kind"])] + 5.0 / step


def train_trial(study: Study, number: int) -> TrialEnd:
    """Train trial ``number`` to its end in imagination; return the end, which is recorded."""
    parameters = study.suggest(number)
    for step in _STEPS:
        value = result_of(parameters, step)
        if study.report(number, step, value):
            end = TrialEnd(TrialState.PRUNED, value, step * 100, f"pruned at step {step}")
            break
    else:
        end = TrialEnd(TrialState.COMPLETE, value, step * 100)
    study.finish(number, end)
    return end


class StudyContract(ABC):
    """The contract of every ``Study``; derive a class named ``Test...`` for an adapter.

    ``outlives`` says whether a study that is opened later in the same place has the trials of the first.
    """

    outlives: ClassVar[bool] = True

    @abstractmethod
    def open_study(self, place: Path, *, seed: int = 0, parallel: int = 1, maximizes: bool = False) -> Study:
        """Return a study of ``SPACE`` in ``place``, an empty folder or that of an earlier study of the same test."""

    @pytest.fixture
    def new_study(self, tmp_path: Path) -> Callable[..., Study]:
        """Return a function that opens a study in a folder of its own."""
        places = (tmp_path / str(number) for number in range(1000))

        def make(**options: Any) -> Study:
            place = next(places)
            place.mkdir()
            return self.open_study(place, **options)

        return make

    def test_a_trial_is_added_once(self, new_study: Callable[..., Study]) -> None:
        """Trials are numbered from 0, and a number that is there already is not added again."""
        study = new_study()
        for number in (0, 0, 1, 0, 1, 2):
            study.add(number)
        assert [trial.number for trial in study.trials()] == [0, 1, 2]
        assert all(trial.state is TrialState.RUNNING and trial.parameters is None for trial in study.trials())

    def test_suggestions_lie_in_the_space(self, new_study: Callable[..., Study]) -> None:
        """Each suggestion has a value within its range, or one of the choices, for each setting of the space."""
        study = new_study(parallel=4)
        for number in range(12):
            study.add(number)
            train_trial(study, number)
            found = study.trials()[number].parameters
            assert found is not None
            assert [*found] == [*SPACE.dimensions]
            assert 1e-4 <= float(found["rate"]) <= 1e-1
            assert found["layers"] in (2, 4, 6, 8)
            assert min(abs(float(found["decay"]) - step) for step in (0.0, 0.1, 0.2, 0.3)) < 1e-9
            assert found["kind"] in ("cosine", "[1, 2]", "null")

    def test_a_suggestion_is_made_once(self, new_study: Callable[..., Study]) -> None:
        """A second question about a trial gets the same parameters, and other trials get others."""
        study = new_study(parallel=3)
        for number in range(3):
            study.add(number)
        first = [study.suggest(number) for number in range(3)]
        assert [study.suggest(number) for number in range(3)] == first == [trial.parameters for trial in study.trials()]
        assert first[0] != first[1] != first[2]

    def test_the_seed_decides(self, new_study: Callable[..., Study]) -> None:
        """Two studies of one seed take the same course, and one of another seed does not."""
        courses = []
        for seed in (3, 3, 4):
            study = new_study(seed=seed)
            for number in range(8):
                study.add(number)
                train_trial(study, number)
            courses.append([(trial.parameters, trial.state, trial.value) for trial in study.trials()])
        assert courses[0] == courses[1] != courses[2]

    @pytest.mark.parametrize("seed", range(2))
    def test_the_order_of_ends_changes_nothing(self, new_study: Callable[..., Study], seed: int) -> None:
        """Trials that train beside each other may end in any order, and be asked for in any order."""
        courses = []
        for shuffle in (seed, seed + 100):
            study, chance = new_study(parallel=3), Random(shuffle)  # noqa: S311  no secret
            running: list[int] = []
            while (number := len(study.trials())) < 12 or running:
                if number < 12 and len(running) < 3 and may_begin(number, study.trials(), 3):
                    study.add(number)
                    running.append(number)
                    if chance.random() < 0.5:
                        study.suggest(number)
                    continue
                train_trial(study, running.pop(chance.randrange(len(running))))
            courses.append(
                [(trial.parameters, trial.state, trial.value, trial.measurements) for trial in study.trials()]
            )
        assert courses[0] == courses[1]

    def test_a_repeated_measurement_gets_the_same_answer(self, new_study: Callable[..., Study]) -> None:
        """A measurement is recorded once, and each repetition of it, later ones too, gets the first answer."""
        study = new_study()
        for number in range(9):
            study.add(number)
            parameters = study.suggest(number)
            answers = {}
            for step in _STEPS:
                answers[step] = study.report(number, step, result_of(parameters, step))
                repeated = {known: study.report(number, known, -1.0) for known in answers}
                assert repeated == answers
                if answers[step]:
                    break
            measured = {step: result_of(parameters, step) for step in answers}
            assert study.trials()[number].measurements == measured
            state = TrialState.PRUNED if True in answers.values() else TrialState.COMPLETE
            study.finish(number, TrialEnd(state, measured[max(answers)]))

    @pytest.mark.parametrize("maximizes", [False, True])
    def test_a_bad_trial_is_pruned(self, new_study: Callable[..., Study], *, maximizes: bool) -> None:
        """After good trials, a trial that is much worse is stopped, and one that is much better is not."""
        study, sign = new_study(maximizes=maximizes), -1.0 if maximizes else 1.0
        for number in range(8):
            study.add(number)
            study.suggest(number)
            assert not any(study.report(number, step, sign * (3.0 - number / 100 - step / 100)) for step in _STEPS)
            study.finish(number, TrialEnd(TrialState.COMPLETE, sign * (2.7 - number / 100)))
        answers = []
        for number, value in ((8, sign * 99.0), (9, sign * 0.5)):
            study.add(number)
            study.suggest(number)
            answers.append(any(study.report(number, step, value) for step in _STEPS))
            study.finish(number, TrialEnd(TrialState.PRUNED, value))
        assert answers == [True, False]

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_measurement_may_be_no_number(self, new_study: Callable[..., Study], value: float) -> None:
        """NaN and infinities are recorded as they are, and the next trial can begin after a failure."""
        study = new_study()
        study.add(0)
        study.suggest(0)
        study.report(0, 10, value)
        assert repr(study.trials()[0].measurements[10]) == repr(value)
        study.finish(0, TrialEnd(TrialState.FAILED, None, 5, "it diverged"))
        study.add(1)
        assert study.suggest(1)

    def test_an_end_is_final(self, new_study: Callable[..., Study]) -> None:
        """The first end of a trial is recorded with its value, tokens and reason, and a second one changes nothing."""
        study = new_study(parallel=3)
        ends = (
            TrialEnd(TrialState.COMPLETE, 1.5, 7),
            TrialEnd(TrialState.PRUNED, 2.5, 8, "pruned at step 10"),
            TrialEnd(TrialState.FAILED, None, 9, "no memory"),
        )
        for number, end in enumerate(ends):
            study.add(number)
            study.suggest(number)
            study.finish(number, end)
            study.finish(number, TrialEnd(TrialState.COMPLETE, 0.0, 1))
        found = [TrialEnd(trial.state, trial.value, trial.tokens, trial.note) for trial in study.trials()]
        assert tuple(found) == ends
        assert all(trial.has_ended for trial in study.trials())

    def test_another_object_sees_everything(self, tmp_path: Path) -> None:
        """A study that is opened again, or a second time, has all trials and goes on as the first one would have."""
        if not self.outlives:
            assert not self.open_study(tmp_path).trials()
            return
        (tmp_path / "whole").mkdir()
        (tmp_path / "cut").mkdir()
        whole = self.open_study(tmp_path / "whole")
        for number in range(8):
            whole.add(number)
            train_trial(whole, number)
            study = self.open_study(tmp_path / "cut")  # as after a kill
            study.add(number)
            parameters = study.suggest(number)
            study.report(number, _STEPS[0], result_of(parameters, _STEPS[0]))
            train_trial(self.open_study(tmp_path / "cut"), number)
            study.close()
        assert _course(self.open_study(tmp_path / "cut").trials()) == _course(whole.trials())

    def test_closing_twice_is_harmless(self, tmp_path: Path) -> None:
        """The second ``close`` changes nothing."""
        study = self.open_study(tmp_path, parallel=2)
        study.add(0)
        for _ in range(2):
            study.close()
        assert study.parallel == 2

    def test_only_what_must_have_ended_is_seen(self, new_study: Callable[..., Study]) -> None:
        """The results of trials that may train beside a trial have no influence on it."""
        found = []
        for value in (0.1, 9.0):
            study = new_study(parallel=2)
            for number in range(12):
                study.add(number)
                study.suggest(number)
                study.report(number, 10, 1.0 if number < 11 else value)
                study.finish(number, TrialEnd(TrialState.COMPLETE, 1.0 if number < 11 else value))
            study.add(12)
            assert len(seen_by(12, study.trials(), 2)) == 11
            found.append((study.suggest(12), study.report(12, 10, 1.0)))
        assert found[0] == found[1]


def _course(trials: Sequence[object]) -> list[str]:
    return [repr(trial) for trial in trials]
