"""How many threads a process may start, by planted limits."""

from __future__ import annotations

import resource

import pytest

from holdfast.adapters.shared.device.openmp import has_room_for_threads


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """Let no limit of a process hold, whatever machine this is, but for those put in here."""
    own = {}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (own.get(kind, resource.RLIM_INFINITY),) * 2)
    return own


def plant(root, files):
    """Write these files below ``root``."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


def in_group(own, place, used, limit):
    return {
        "proc/self/cgroup": own,
        f"sys/fs/cgroup/{place}pids.current": used,
        f"sys/fs/cgroup/{place}pids.max": limit,
    }


@pytest.mark.parametrize(
    ("files", "fits"),
    [
        ({}, True),
        (in_group("0::/", "", 10, "max"), True),
        (in_group("0::/", "", 10, 220), True),
        (in_group("0::/", "", 10, 219), False),
        (in_group("0::/pod/box", "pod/", 10, 200), False),
        (in_group("0::/../other", "", 10, 200), False),
        (in_group("5:pids:/box\n0::/", "pids/box/", 10, 200), False),
        (in_group("5:cpu:/box", "pids/box/", 10, 200), True),
        ({"proc/loadavg": "0.1 0.1 0.1 1/900 77", "proc/sys/kernel/threads-max": 2000}, True),
        ({"proc/loadavg": "0.1 0.1 0.1 1/900 77", "proc/sys/kernel/threads-max": 1999}, False),
        ({"proc/loadavg": "0.1 0.1 0.1 1/900 77", "proc/sys/kernel/pid_max": 1999}, False),
        ({"proc/sys/vm/overcommit_memory": 0}, True),
        ({"proc/sys/vm/overcommit_memory": 2}, False),
    ],
)
def test_half_of_each_limit_stays_free(tmp_path, files, fits):
    """A hundred more threads fit if no control group and no limit of the system comes to more than half."""
    assert has_room_for_threads(100, plant(tmp_path, files)) == fits


def test_the_users_limit_counts_all_its_threads(tmp_path, limits):
    """Threads of every process of this user count for the limit on them."""
    for process, task in [(1, 1), (1, 2), (7, 7)]:
        (tmp_path / f"proc/{process}/task/{task}").mkdir(parents=True)
    limits[resource.RLIMIT_NPROC] = 206
    assert has_room_for_threads(100, tmp_path)
    limits[resource.RLIMIT_NPROC] = 205
    assert not has_room_for_threads(100, tmp_path)


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_limited_memory_has_no_room_for_stacks(tmp_path, limits, kind):
    """Where the memory of a process is limited, nothing else than the model takes of it."""
    limits[kind] = 1 << 40
    assert not has_room_for_threads(2, tmp_path)
