"""A schedule that another package offers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint

import pytest

from holdfast.bootstrap.stages.attach.suite_process import asked_trust
from holdfast.bootstrap.stages.build.model import schedule
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.step_outcome import Progress


@dataclass
class Sawtooth:
    peak: float
    budget: Budget
    teeth: int = 1

    def at(self, progress):
        return self.peak / (1 + progress.step % self.teeth)


def nothing(peak, budget):
    return peak


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    names = {"sawtooth": "Sawtooth", "nothing": "nothing"}
    points = [EntryPoint(name, f"{__name__}:{target}", "holdfast.schedule") for name, target in names.items()]
    points.append(EntryPoint("in_c", "builtins:range", "holdfast.schedule"))
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: points * (group == "holdfast.schedule")
    )


def chosen(*overrides):
    settings = load_settings([], overrides, {}).settings
    return schedule(settings.optimizer.learning_rate, settings.optimizer.schedule, Budget(100, None)), settings


def test_it_is_given_peak_budget_and_options():
    """The entry point is called once with the peak, the run's budget and its options, and says each rate."""
    found, _ = chosen("optimizer.learning_rate=0.5", "optimizer.schedule={kind: sawtooth, options: {teeth: 5}}")
    assert found == Sawtooth(0.5, Budget(100, None), 5)
    progress = Progress()
    assert [found.at(replace(progress, step=step)) for step in (0, 1, 5)] == [0.5, 0.25, 0.5]


def test_a_foreign_run_folder_has_to_be_trusted_with_it():
    """It is code of another package, so that somebody has to say its name again."""
    assert asked_trust(chosen("optimizer.schedule.kind=sawtooth")[1]) == {"optimizer.schedule.kind": "sawtooth"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("{kind: in_c}", "do not fit: range.* takes no keyword arguments"),
        ("{kind: sawtoot}", "did you mean sawtooth"),
        ("{kind: cosin}", "did you mean cosine"),
        ("{kind: sawtooth, options: {tooth: 5}}", "options of schedule 'sawtooth' do not fit"),
        ("{kind: nothing}", "gives a float without at"),
        ("{kind: sawtooth, floor: 0.5}", "floor, which an outside schedule such as sawtooth does not read"),
        ("{kind: linear, options: {teeth: 5}}", "leave options out"),
    ],
)
def test_what_does_not_fit_is_told(setting, words):
    """A slip, options that it does not take, a thing that is no schedule and settings that it would not read."""
    with pytest.raises(ConfigurationError, match=words):
        chosen(f"optimizer.schedule={setting}")
