"""Every study keeps the port's promises, whatever its sampler and its pruner."""

from __future__ import annotations

from holdfast.adapters.study.memory import MemoryStudy
from holdfast.adapters.study.optuna import OptunaStudy, SearchRules
from holdfast.ports.testing.study import SPACE, StudyContract


class TestMemoryStudy(StudyContract):
    outlives = False

    def open_study(self, place, *, seed=0, parallel=1, maximizes=False):
        return MemoryStudy(SPACE, seed, parallel, maximizes=maximizes)


class TestOptunaStudy(StudyContract):
    rules = SearchRules("tpe", "median", {"n_startup_trials": 4})

    def open_study(self, place, *, seed=0, parallel=1, maximizes=False):
        return OptunaStudy(place / "journal.log", SPACE, self.rules, seed, parallel, maximizes=maximizes)


class TestOptunaStudyAtRandom(TestOptunaStudy):
    rules = SearchRules("random", "hyperband", {}, {"min_resource": 10, "max_resource": 30, "reduction_factor": 2})


class TestOptunaStudyByHalving(TestOptunaStudy):
    rules = SearchRules("tpe", "successive_halving", {"n_startup_trials": 4}, {"min_resource": 10})
