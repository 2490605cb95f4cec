"""How much memory is left beside training."""

import pytest

from adapters.shared.host_memory import free_share
from bootstrap.host_memory import MemoryPressure, has_room_beside


@pytest.fixture
def cgroup(tmp_path):
    """Return a function that makes a control group of this limit and use, in MiB."""

    def make(limit, used, reclaimable):
        for name, value in (("max", limit), ("current", used)):
            (tmp_path / f"memory.{name}").write_text(f"{value if value == 'max' else value << 20}\n")
        (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {reclaimable << 20}\n")
        return tmp_path

    return make


def test_the_tighter_of_machine_and_control_group_counts(cgroup):
    """A control group that is nearly full says so, whatever the machine has; files in its cache are room."""
    assert free_share(cgroup(100, 95, 0)) == pytest.approx(0.05)
    assert free_share(cgroup(100, 95, 10)) == pytest.approx(0.15)


def test_a_group_without_a_limit_leaves_the_machine_s(cgroup, tmp_path):
    """With the limit "max", and where there are no control groups, the machine's memory counts."""
    folder = cgroup("max", 5, 0)
    before, within, after = (free_share(place) for place in (tmp_path / "none", folder, tmp_path / "none"))
    assert 0 < before <= 1
    assert min(before, after) - 0.05 <= within <= max(before, after) + 0.05  # others take memory meanwhile


def test_nothing_runs_beside_training_unless_it_is_wanted():
    """The setting decides first."""
    assert not has_room_beside(False)


def test_pressure_begins_late_and_ends_early():
    """Memory counts as nearly full from 85 % in use on, until less than 75 % are."""
    free = iter([0.2, 0.14, 0.2, 0.26, 0.2])
    pressure = MemoryPressure(lambda: next(free))
    assert [pressure() for _ in range(5)] == [False, True, True, False, False]
