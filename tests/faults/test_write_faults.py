"""Whatever write, sync, rename or deletion in the run folder fails, records are whole and no litter stays."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.file_faults import litter
from tests.support.forked_runs import FOLDER, STEPS, complete_steps, final_state, scratch, start_forked_runs

FOR_EVER = 1 << 40
# how many operations fail behind the first, by which error, and whether a write takes half of its bytes first
KINDS = {
    "once": (0, errno.EIO, 0),
    "burst": (7, errno.ENOSPC, 0),
    "torn": (2, errno.ENOSPC, 1),
    "short": (0, 0, 1),
    "for-ever": (FOR_EVER, errno.ENOSPC, 0),
}
WHOLE = list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def failing():
    """Return runs whose disk fails where they are told."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler, which makes the library that has operations fail")
    home = scratch("failing")
    library, source = home / "failing_disk.so", Path(__file__).with_name("failing_disk.c")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("the C compiler of this system does not know what the library that has operations fail needs")
    started = start_forked_runs(home, library)
    yield started
    started.process.communicate()
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def operations(failing):
    """Return the number of the operations of a run that could fail, counted once."""
    return failing.run(failing.home / "counted", disk=[FOR_EVER, -1, 0, 0])["operations"]


def strays(folder):
    """Return what a write under way leaves in the run folder until it is done."""
    halves = [path for path in folder.rglob("*") if path.is_file() and path.name.endswith((".tmp", ".new"))]
    return [*map(str, halves), *litter(folder)]


def assert_whole(place):
    """Have every step told once, and every line of every record be JSON."""
    assert complete_steps(place) == WHOLE
    for path in (place / FOLDER).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line)


def check(runs, place, kind, point):
    """Train with the operation of that number failing, and once more without."""
    length, error, is_cut = KINDS[kind]
    first = runs.run(place, disk=[point, point + length, error, is_cut])
    told = (place / "err.log").read_text()
    assert first["code"] in (0, 4), told
    assert "Traceback" not in told
    if first["code"] == 0 and kind != "for-ever":
        assert_whole(place)
    second = runs.run(place)
    assert second["code"] == 0, (place / "err.log").read_text()
    assert_whole(place)
    assert strays(place / FOLDER) == []
    assert final_state(place) == runs.undisturbed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "stride", [200, pytest.param(5, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])], ids=["sample", "sweep"]
)
def test_a_failing_disk_costs_no_record(failing, operations, home, kind, stride):
    """After an error once, in a burst, for ever or in mid-write, and after half a write, the next start mends all."""
    start = 3 + (40 * list(KINDS).index(kind)) % stride
    for point in range(start, operations, stride):
        check(failing, home / f"{point}", kind, point)
        shutil.rmtree(home / f"{point}")
