"""The files by which ``doctor`` judges the clock."""

import os
import time

import pytest

from holdfast.bootstrap.doctor.diagnosis import look_at_clock
from holdfast.bootstrap.doctor.finding import CheckVerdict
from tests.support.planted_troubles import settings_of


@pytest.mark.parametrize("name", ["new", "file"])
def test_only_files_of_the_run_count(tmp_path, name):
    """A file beside a run folder that does not exist, or that cannot be listed, says nothing about the clock."""
    (tmp_path / "file").touch()
    later = time.time() + 7200
    os.utime(tmp_path / "file", (later, later))
    (finding,) = look_at_clock(settings_of(f"run.dir={tmp_path / name}"), 5.0)
    assert finding.verdict is CheckVerdict.OK
