"""A training of which one reading of the text is wrong never ends well with other weights or another cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DRIVER = HERE.parent / "support/flip_source_driver.py"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="what flips bits of readings is compiled by cc")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """Return what is preloaded."""
    path = tmp_path_factory.mktemp("shim") / "flip_reads.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, HERE / "flip_reads.c", "-ldl"], check=True)
    return path


def tried(shim, folder, way, seconds):
    """Return what came of readings that were right, and of each that was wrong."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVER), way, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    right, *others = [json.loads(line) for line in (folder / "found").read_text().splitlines()]
    return right, others


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["cache", "stream", "mixture", "parts", "s3-cache", "s3-stream"])
def test_no_wrong_reading_of_text_is_trained_on_or_stored(shim, tmp_path, way):
    """Whichever reading is wrong, weights and stored tokens are the right ones, or the run ends in a told error."""
    right, others = tried(shim, tmp_path, way, 1700)
    assert right["code"] == 0, right["error"]
    assert len(others) == right["count"] > 3
    for other in others:
        assert other["code"] in (0, 4), other
        assert other["code"] or (other["weights"], other["stored"]) == (right["weights"], right["stored"]), other
        assert other["stored"].items() <= right["stored"].items(), other
        assert "Traceback" not in other["error"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["ranks-cache", "ranks-stream"])
def test_no_wrong_reading_of_text_on_two_ranks_is_trained_on_or_stored(shim, tmp_path, way):
    """Whichever rank's reading is wrong, both have the right weights and tokens, or both end, one in a told error."""
    right, others = tried(shim, tmp_path, way, 3500)
    assert right["code"] == [0, 0], right["error"]
    assert {other["rank"] for other in others} == {0, 1}
    for other in others:
        assert other["code"] == [0, 0] or (4 in other["code"] and 0 not in other["code"]), other
        is_right = (other["weights"], other["stored"]) == (right["weights"], right["stored"])
        assert other["code"] != [0, 0] or is_right, other
        assert other["stored"].items() <= right["stored"].items(), other
        assert "Traceback" not in other["error"]
