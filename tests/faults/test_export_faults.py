"""An export whose disk fills up, or whose process is killed, leaves no folder that could be taken for a model."""

from __future__ import annotations

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.forked_runs import FOLDER, scratch, start_forked_runs

pytest.importorskip("gguf")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FOR_EVER = 1 << 40
FORMATS = ("huggingface", "gguf:q8_0")
OUT = Path("runs/out")


@pytest.fixture(scope="module")
def failing():
    """Return runs whose disk fails where they are told."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler, which makes the library that has operations fail")
    home = scratch("failing-export")
    library, source = home / "failing_disk.so", Path(__file__).with_name("failing_disk.c")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("the C compiler of this system does not know what the library that has operations fail needs")
    started = start_forked_runs(home, library)
    yield started
    started.process.communicate()
    shutil.rmtree(home)


def export(runs, place, form, **job):
    """Export the undisturbed run below ``place``; return how that ended."""
    (place / "runs").mkdir(parents=True, exist_ok=True)
    command = ["export", str(runs.home / "undisturbed" / FOLDER), str(place / OUT), "--format", form]
    return runs.run(place, command=command, **job)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_leaves_no_folder(failing, home, form):
    """Whichever write, sync or rename finds the disk full, the command ends with code 4, and no part is there."""
    whole = export(failing, home / "whole", form, disk=[FOR_EVER, -1, 0, 0])
    assert whole["code"] == 0, (home / "whole/err.log").read_text()
    expected, num_operations = files_of(home / "whole" / OUT), whole["operations"]
    assert num_operations > 5
    for point in range(0, num_operations, max(1, num_operations // 6)):
        place = home / f"full-{point}"
        outcome = export(failing, place, form, disk=[point, FOR_EVER, errno.ENOSPC, 0])
        told = (place / "err.log").read_text()
        assert "Traceback" not in told
        if outcome["code"] == 0:  # what failed was the deletion of something that is not there, for example
            assert files_of(place / OUT) == expected
        else:
            assert outcome["code"] == 4, told
            assert "no space left on device: free some space" in told
            # where the last sync fails, such a disk refuses to take the name of the whole folder back
            assert not (place / OUT).exists() or files_of(place / OUT) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_a_killed_export_leaves_no_folder(runs, home, form):
    """Whenever it is killed, the folder is whole or not there, and the next export leaves nothing else."""
    started = export(runs, home / "whole", form)
    assert started["code"] == 0, (home / "whole/err.log").read_text()
    expected = files_of(home / "whole" / OUT)
    for share in (0.6, 0.8, 0.9, 0.97):
        export(runs, home / "killed", form, kill_after=share * started["seconds"])
        if (home / "killed" / OUT).exists():
            assert files_of(home / "killed" / OUT) == expected
            shutil.rmtree(home / "killed" / OUT)
    assert export(runs, home / "killed", form)["code"] == 0
    assert [path.name for path in (home / "killed/runs").iterdir()] == [OUT.name]
