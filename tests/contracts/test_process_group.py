"""Every process group keeps the port's promises, and each its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.domain.commands import Evaluate, SaveCheckpoint, SaveReason, SplitBatch, StopRun
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.ports.testing.process_group import ProcessGroupContract
from tests.support import process_group_ranks
from tests.support.process_group_ranks import Ranks

COMMANDS = st.lists(
    st.builds(SplitBatch, st.integers(1))
    | st.builds(SaveCheckpoint, st.sampled_from(SaveReason))
    | st.builds(Evaluate)
    | st.builds(StopRun, st.text(), st.none() | st.integers(1, 64)),
    max_size=3,
)


def in_threads(groups, task):
    with ThreadPoolExecutor(len(groups)) as threads:
        return list(threads.map(task, groups))


class TestSingleProcessGroup(ProcessGroupContract):
    def on_each_rank(self, task, *, timeout_seconds):
        return [task(SingleProcessGroup())]


class TestMemoryProcessGroup(ProcessGroupContract):
    short_timeout = 0.2

    def on_each_rank(self, task, *, timeout_seconds):
        return in_threads(MemoryProcessGroup.linked(3, timeout_seconds=timeout_seconds), task)

    @given(
        rounds=st.integers(1, 4).flatmap(lambda size: st.lists(st.tuples(*[COMMANDS] * size), min_size=1, max_size=4))
    )
    @settings(deadline=None, max_examples=50)
    def test_any_commands_in_any_rounds(self, rounds):
        """Whatever the ranks give, each gets the same: round by round, rank by rank."""
        groups = MemoryProcessGroup.linked(len(rounds[0]))
        results = in_threads(groups, lambda group: [list(group.agree(given[group.rank])) for given in rounds])
        expected = [[command for commands in given for command in commands] for given in rounds]
        assert results == [expected] * len(groups)

    def test_without_arguments_it_is_alone(self):
        """A member of its own is a group of one."""
        group = MemoryProcessGroup()
        assert (group.rank, group.size, list(group.agree([Evaluate()]))) == (0, 1, [Evaluate()])

    def test_a_closed_member_is_missed_at_once(self):
        """Nobody waits for the time-out if a member is known to be gone, and the error names it."""
        first, second = MemoryProcessGroup.linked(2, timeout_seconds=3600)
        second.close()
        with pytest.raises(TrainingError, match="rank 1"):
            first.barrier()

    def test_a_closed_member_takes_no_part(self):
        """Who has left cannot agree any more."""
        group = MemoryProcessGroup()
        group.close()
        with pytest.raises(TrainingError, match="left"):
            group.agree([])


@pytest.fixture(scope="module")
def ranks():
    ranks = Ranks(2)
    yield ranks
    ranks.stop()


class TestTorchProcessGroup(ProcessGroupContract):
    @pytest.fixture(autouse=True)
    def _processes(self, ranks):
        self.ranks = ranks

    def on_each_rank(self, task, *, timeout_seconds):
        return self.ranks.run(task, timeout_seconds=timeout_seconds)

    def test_a_killed_rank_is_missed(self):
        """After ``kill -9`` of a process the others get their error within the time-out."""
        assert self.ranks.run(process_group_ranks.die, timeout_seconds=10, dying={1})[0] == "TrainingError"

    def test_it_stands_beside_another_group(self):
        """Torch's default group, or a second of these, can be made and left without harm to this one."""
        results = self.on_each_rank(process_group_ranks.stand_beside_another_group, timeout_seconds=90)
        assert results == [[2, 2, 2, 2], [2, 2, 2, 2]]

    @pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
    def test_without_torchrun_it_says_so(self, environment, name):
        """A missing variable raises ``ConfigurationError``, which names it and the remedy."""
        from holdfast.adapters.process_group.torch import TorchProcessGroup

        environment.delenv(name)
        with pytest.raises(ConfigurationError, match=f"{name} .* torchrun"):
            TorchProcessGroup(1.0)

    @pytest.mark.parametrize(
        ("name", "value"), [("RANK", "one"), ("RANK", "2"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "x")]
    )
    def test_an_environment_without_sense(self, environment, name, value):
        """A variable that makes no sense raises ``ConfigurationError``, which names it."""
        from holdfast.adapters.process_group.torch import TorchProcessGroup

        environment.setenv(name, value)
        with pytest.raises(ConfigurationError, match=name):
            TorchProcessGroup(1.0)

    def test_ranks_that_do_not_come_are_missed(self, environment):
        """If the others never start, the first rank does not wait for good."""
        from holdfast.adapters.process_group.torch import TorchProcessGroup

        with pytest.raises(TrainingError, match="rank 0 of 2"):
            TorchProcessGroup(1.0)


@pytest.fixture
def environment(monkeypatch):
    """Return torchrun's environment, as the first of two ranks would see it."""
    with process_group_ranks.reserved_port() as port:
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        yield monkeypatch
