"""How many processors a process may use, by planted control groups."""

from __future__ import annotations

import os

import pytest

from holdfast.adapters.shared.device.host_memory import allowed_cpus, usable_cpus

CPUS = 8


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    """Let the system allow eight processors, whatever machine this is."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CPUS)), raising=False)


def plant(root, own, limits):
    """Write ``/proc/self/cgroup`` and the files of control groups below ``root``."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    for path, text in limits.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def planted_first(quota, period=100000, place="cpu/box"):
    return {f"{place}/cpu.cfs_quota_us": f"{quota}\n", f"{place}/cpu.cfs_period_us": f"{period}\n"}


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {}, CPUS),
        ("0::/\n", {"cpu.max": "max 100000\n"}, CPUS),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, CPUS),
        ("0::/pod/box\n", {"pod/box/cpu.max": "max 100000\n", "pod/cpu.max": "200000 100000\n"}, 2),
        ("0::/pod/box\n", {"pod/box/cpu.max": "100000 50000\n", "pod/cpu.max": "500000 100000\n"}, 2),
        ("0::/../../other\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/docker/not-visible\n", {"cpu.max": "400000 100000\n"}, 4),
        ("1:cpu:/box\n0::/\n", planted_first(250000), 3),
        ("1:cpu:/box\n0::/\n", planted_first(-1), CPUS),
        ("4:cpu,cpuacct:/box\n", planted_first(100000, 50000, "cpu,cpuacct/box"), 2),
        ("4:cpu,cpuacct:/box/in\n", planted_first(-1, place="cpu/box/in") | planted_first(100000), 1),
        ("7:cpuset:/box\n", planted_first(100000), CPUS),
        ("1:name=systemd:/\n0::/box\n", {"unified/box/cpu.max": "500000 100000\n"}, 5),
        ("0::/\n", {"cpu.max": "garbage\n"}, CPUS),
    ],
)
def test_the_smallest_quota_counts(tmp_path, own, limits, expected):
    """A process may use what the tightest of its control groups and those around it grants, rounded up."""
    assert usable_cpus(plant(tmp_path, own, limits), {}) == expected


def test_affinity_counts(tmp_path, monkeypatch):
    """A process that is bound to two processors uses two, and as many as there are where systems know no affinity."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cpus(tmp_path, {}) == 2

    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cpus(tmp_path, {}) == allowed_cpus() == (os.cpu_count() or 1)


@pytest.mark.parametrize(("ranks", "expected"), [("", 6), ("1", 6), ("2", 3), ("4", 1), ("64", 1)])
def test_ranks_share_what_there_is(tmp_path, ranks, expected):
    """The ranks that a launcher started on this machine share its quota, and each may use one processor at least."""
    root = plant(tmp_path, "0::/\n", {"cpu.max": "600000 100000\n"})

    assert usable_cpus(root, {"LOCAL_WORLD_SIZE": ranks}) == expected
