"""The number of processes of a planned run."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.operations.plan_run import note_on_ranks, planned_ranks
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError


def settings_of(**distributed):
    return TrainSettings(distributed=distributed, optimizer={"device": "cpu"})


@pytest.mark.parametrize(
    ("distributed", "environment", "ranks"),
    [
        ({}, {}, 1),
        ({"processes": 2}, {}, 2),
        ({"processes": 2}, {"WORLD_SIZE": "4"}, 4),
        ({"kind": "torch"}, {"WORLD_SIZE": "4"}, 4),
        ({"kind": "torch"}, {"WORLD_SIZE": "1"}, 1),
        ({"kind": "ray", "workers": (2, 8)}, {}, 8),
        ({"kind": "single"}, {"WORLD_SIZE": "4"}, 1),
    ],
)
def test_a_plan_has_the_ranks_of_its_launcher(distributed, environment, ranks):
    """The ranks are those that the settings or the launcher's environment name, of Ray the most that may be."""
    assert planned_ranks(settings_of(**distributed), environment) == ranks


@pytest.mark.parametrize("kind", ["torch", "of_another_package"])
def test_an_unknown_number_of_ranks_is_refused(kind):
    """If only another launcher knows the number, no plan for one rank is made in its place."""
    with pytest.raises(ConfigurationError, match=rf"distributed\.kind={kind} .* set WORLD_SIZE to it"):
        planned_ranks(settings_of(kind=kind), {})


def test_a_changing_number_of_ranks_is_named():
    """A plan for the most workers of Ray says so, unless their number is fixed."""
    assert note_on_ranks(settings_of(kind="ray", workers=(2, 8))) == (
        "planned for 8 workers of Ray; with 2, each may need more memory, and a step takes longer"
    )
    assert note_on_ranks(settings_of(kind="ray", workers=(4, 4))) is None
    assert note_on_ranks(settings_of()) is None
