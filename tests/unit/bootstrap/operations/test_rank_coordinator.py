"""The end of a run on a cluster, decided by the ends of its ranks."""

from __future__ import annotations

import signal

import pytest

from holdfast.bootstrap.operations.rank_coordinator import RankCoordinator


def with_ranks(size, start="a"):
    """Return a coordinator with ``size`` ranks that run."""
    coordinator = RankCoordinator()
    for rank in range(size):
        assert coordinator.begin(start, rank, size)
    return coordinator


def test_a_run_has_finished_when_all_ranks_have():
    """One rank that has finished decides nothing."""
    coordinator = with_ranks(2)
    coordinator.end("a", 1, 0)
    assert coordinator.status().decided is None
    assert not coordinator.has_ended("a")
    coordinator.end("a", 0, 0)
    assert coordinator.status().decided == 0
    assert coordinator.has_ended("a")


@pytest.mark.parametrize("code", [2, 3, 4])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_mistake_decides_the_run_whatever_the_other_ranks_say(code, is_first):
    """A rank that lost the one with the mistake ends with 1, before or after it."""
    coordinator = with_ranks(2)
    for rank in (0, 1) if is_first else (1, 0):
        coordinator.end("a", rank, code if rank == 0 else 1)
    assert coordinator.status().decided == code
    assert not coordinator.begin("b", 0, 2), "another start would end in the same way"


@pytest.mark.parametrize("code", [1, 75, 129, 130, 137, 138, 143])
def test_other_ends_ask_for_another_start(code):
    """A crash, a kill and a signal that nobody asked for do not end the run."""
    coordinator = with_ranks(2)
    coordinator.end("a", 0, code)
    assert (coordinator.status().decided, coordinator.status().failure) == (None, code)
    coordinator.end("a", 1, 0)
    assert coordinator.has_ended("a")
    assert coordinator.status().decided is None
    for _ in range(2):
        coordinator.fail("a")
    assert coordinator.status().num_failed == 1, "each rank of a start says so"
    assert coordinator.begin("b", 0, 1)
    assert coordinator.status().failure is None
    coordinator.fail("a")
    coordinator.end("a", 1, 2)
    assert coordinator.status().decided is None, "an earlier start has no say"


def test_the_most_specific_failure_counts():
    """A rank that ends with 1 because another one was killed hides nothing."""
    for codes, expected in (((1, 137), 137), ((137, 1), 137), ((75, 137), 75), ((1, 1), 1)):
        coordinator = with_ranks(2)
        for rank, code in enumerate(codes):
            coordinator.end("a", rank, code)
        assert coordinator.status().failure == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_of_the_command_ends_the_run(number, code):
    """The ranks end by the signal, and the run with its code."""
    coordinator = with_ranks(2)
    coordinator.send(number)
    assert coordinator.signals() == (number,)
    coordinator.end("a", 0, code)
    assert coordinator.status().decided == code
    assert coordinator.status().num_running == 1


def test_no_rank_begins_after_a_signal():
    """Ray may start ranks between the signal and the end of the command."""
    coordinator = with_ranks(1)
    coordinator.end("a", 0, 143)
    coordinator.send(signal.SIGINT)
    assert not coordinator.begin("b", 0, 1)
    assert coordinator.status().failure is None, "an earlier failure is no end by this signal"
