"""Host memory that each rank takes to build, save and restore a model that the ranks divide."""

from __future__ import annotations

import pytest

from tests.integration.test_engines_agree import said_by

LOADS = ("build", "build from a folder")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("engine", "kind"),
    [("fsdp2", "decoder"), ("ddp+tensor=2", "decoder"), ("ddp+pipeline=2", "decoder"), ("fsdp2", "llama")],
)
def test_a_rank_takes_little_more_than_its_part(engine, kind):
    """Each rank takes at most 1.2 times its part of the weights to build, save in place and restore the model."""
    measured = [said_by("memory_of_ranks.py", 2, engine, kind) for _ in range(2)]
    found = measured[0]
    for rank in range(2):
        # the heap of a process grows by up to 10 MB more or less from one start to another, so the lesser one counts
        taken = {phase: min(each["ranks"][rank][phase] for each in measured) for phase in found["bounds"]}
        for phase, bound in found["bounds"].items():
            assert taken[phase] <= bound, (engine, rank, phase)
        for phase in LOADS:
            assert taken[phase] > found["weights"] / 2.2, "a measurement that misses a rank's own part proves nothing"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_measurement_notices_a_whole_model():
    """A rank that builds the whole model before it keeps its part exceeds the bound."""
    found = said_by("memory_of_ranks.py", 2, "fsdp2", "decoder", "whole")
    for taken in found["ranks"]:
        for phase in LOADS:
            assert taken[phase] > found["bounds"][phase], phase
