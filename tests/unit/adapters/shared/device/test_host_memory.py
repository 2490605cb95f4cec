"""How much memory is left beside training."""

import pytest

from holdfast.adapters.shared.device.host_memory import free_bytes, free_share
from holdfast.bootstrap.stages.fit.micro_batch import MemoryPressure, has_room_beside


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


@pytest.mark.parametrize(
    ("place", "line", "names"),
    [
        ("a/b", "0::/a/b", ("memory.max", "memory.current", "inactive_file")),
        ("memory/a/b", "4:memory:/a/b", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
@pytest.mark.parametrize("level", [".", ".."])
def test_the_group_that_the_process_is_in_counts_in_either_version(tmp_path, place, line, names, level):
    """What is left of the process's own group, or of one above it, is what can still be had."""
    (tmp_path / place).mkdir(parents=True)
    folder = tmp_path / place / level
    (folder / names[0]).write_text(f"{100 << 20}\n")
    (folder / names[1]).write_text(f"{95 << 20}\n")
    (folder / "memory.stat").write_text(f"{names[2]} {10 << 20}\n")
    (tmp_path / "own").write_text(f"9:pids:/x\n{line}\n")
    assert free_share(tmp_path, tmp_path / "own") == pytest.approx(0.15)
    assert free_bytes(tmp_path, tmp_path / "own") == 15 << 20


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
