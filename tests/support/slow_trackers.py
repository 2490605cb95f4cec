"""The contract of trackers for libraries that take seconds to start."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings

from holdfast.ports.testing.monitor import _NOT_FINITE, _RECORDS, TrackerContract


class SlowTrackerContract(TrackerContract):
    """The contract, with fewer random examples."""

    @given(records=_RECORDS)
    @example(records=_NOT_FINITE)
    @example(records=[(2**40, {"": 1.0, "_": 2.0, "step": 3.0, "step_": 4.0}), (0, {"_step": -0.0, "a/b.c": 2**53})])
    @settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    def test_any_name_any_float_any_order(self, records):
        """Any names and any floats are kept, and the steps may come in any order."""
        with tempfile.TemporaryDirectory() as name:
            tracker = self.open_monitor(Path(name))
            for step, metrics in records:
                tracker.record(step, metrics)
            tracker.close()
            assert self._figures(tracker, Path(name)) == self._expected(records)


def processes_of(folder):
    """Return the processes that have a file of the folder open."""
    found = []
    for files in Path("/proc").glob("[0-9]*/fd"):
        try:
            found += [files.parent.name for file in files.iterdir() if str(folder) in str(file.readlink())]
        except OSError:
            continue
    return found
