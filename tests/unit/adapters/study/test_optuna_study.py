"""The journal of a study: killed writers, damaged lines, several writers at once, and options that do not fit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.adapters.study.optuna import PRUNERS, OptunaStudy, SearchRules
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.tuning.search_space import Choices, IntRange, SearchSpace
from holdfast.domain.tuning.trial import TrialEnd, TrialState
from holdfast.ports.testing.study import SPACE

GRID = SearchSpace({"a": IntRange(1, 3), "b": Choices(("x", "y"))})


def study_in(folder, rules=None, space=SPACE, **options):
    return OptunaStudy(folder / "journal.log", space, rules or SearchRules("random", "none"), **options)


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_a_kill_left_incomplete_is_removed(tmp_path, cut):
    """The next writer removes the torn line, and everything before it is still there."""
    study = study_in(tmp_path)
    study.add(0)
    parameters = study.suggest(0)
    journal = tmp_path / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker_id": "x", "stu'[:cut])
    again = study_in(tmp_path)
    again.add(1)
    again.finish(1, TrialEnd(TrialState.FAILED))
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    assert [trial.state for trial in study_in(tmp_path).trials()] == [TrialState.RUNNING, TrialState.FAILED]
    assert again.suggest(0) == parameters


def test_parameters_that_a_kill_cut_off_are_completed(tmp_path):
    """A trial of which only some parameters were recorded gets the same ones as without the kill."""
    study = study_in(tmp_path)
    study.add(0)
    whole = study.suggest(0)
    journal = tmp_path / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]))
    cut = study_in(tmp_path)
    assert cut.trials()[0].parameters is None
    assert cut.suggest(0) == whole == study_in(tmp_path).trials()[0].parameters


def test_a_damaged_journal_is_one_sentence(tmp_path):
    """A journal with a line that is no JSON in its middle is refused with its path and the remedy."""
    study_in(tmp_path).add(0)
    journal = tmp_path / "journal.log"
    first, *others = journal.read_text().splitlines(keepends=True)
    journal.write_text(first + "}{\n" + "".join(others))
    with pytest.raises(StateError, match=r"journal\.log is damaged .*set the study aside with tune --fresh"):
        study_in(tmp_path).trials()


def test_a_journal_that_cannot_be_written_is_one_sentence(tmp_path):
    """A folder that is not there is reported with the reason of the system."""
    with pytest.raises(StateError, match="cannot be used, no such file or directory"):
        study_in(tmp_path / "none")


def test_writers_at_once_add_each_trial_once(tmp_path):
    """Several objects that add the same trials at once make each of them once."""
    studies = [study_in(tmp_path) for _ in range(4)]

    def add(study):
        for number in range(8):
            while len(study.trials()) < number:
                pass
            study.add(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, studies))
    assert [trial.number for trial in study_in(tmp_path).trials()] == list(range(8))


def test_a_grid_has_each_combination(tmp_path):
    """The sampler grid takes all combinations in turn."""
    study = study_in(tmp_path, SearchRules("grid", "none"), GRID)
    found = []
    for number in range(GRID.num_points):
        study.add(number)
        found.append(tuple(study.suggest(number).values()))
        study.finish(number, TrialEnd(TrialState.COMPLETE, 1.0))
    assert sorted(found) == [(a, b) for a in (1, 2, 3) for b in ("x", "y")]


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (
            SearchRules("tpe", "none", {"n_startup": 1}),
            r"tune\.sampler_options do not fit tune\.sampler=tpe: .*n_startup",
        ),
        (
            SearchRules("tpe", "median", {}, {"n_startup_trials": -1}),
            r"tune\.pruner_options do not fit tune\.pruner=median",
        ),
        (SearchRules("random", "percentile"), r"tune\.pruner_options do not fit tune\.pruner=percentile: .*percentile"),
    ],
)
def test_options_that_do_not_fit_are_named(rules, sentence):
    """Arguments that the class of a sampler or a pruner does not take are refused."""
    with pytest.raises(ConfigurationError, match=sentence):
        (rules.make_sampler(0), rules.make_pruner())


@pytest.mark.parametrize("pruner", sorted({*PRUNERS} - {"percentile", "threshold"}))
def test_each_pruner_judges(tmp_path, pruner):
    """Each pruner that needs no arguments answers a measurement."""
    study = study_in(tmp_path, SearchRules("random", pruner))
    study.add(0)
    study.suggest(0)
    assert study.report(0, 10, 1.0) in (False, True)
