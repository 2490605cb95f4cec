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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["cache", "stream", "mixture", "parts", "s3-cache", "s3-stream"])
def test_no_wrong_reading_of_text_is_trained_on_or_stored(shim, tmp_path, way):
    """Whichever reading is wrong, weights and stored tokens are the right ones, or the run ends in a told error."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVER), way, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stderr
    right, *others = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert right["code"] == 0, right["error"]
    assert len(others) == right["count"] > 3
    for other in others:
        assert other["code"] in (0, 4), other
        assert other["code"] or (other["weights"], other["stored"]) == (right["weights"], right["stored"]), other
        assert other["stored"].items() <= right["stored"].items(), other
        assert "Traceback" not in other["error"]
