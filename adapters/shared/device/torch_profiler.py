"""Measures the cost of operators with torch's profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch
from torch.profiler import ProfilerAction, profile

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = 30


@final
class TorchProfiler:
    """Profiles the time and memory of torch's operators, and writes a Chrome trace and a table into ``folder``.

    Call all methods in the training thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profile: profile | None = None

    def start(self, step: int) -> None:
        """Start profiling with ``step``; torch allows one profiler at a time in a process."""
        # without a schedule torch does not mark steps
        self._profile = profile(schedule=lambda _: ProfilerAction.RECORD, profile_memory=True)
        self._profile.step_num = step
        self._profile.start()

    def step(self) -> None:
        """Mark the end of a step and the beginning of the next in the trace."""
        assert self._profile is not None, "step needs a profiler that was started"
        self._profile.step()

    def stop(self, name: str) -> str:
        """Write ``name.trace.json.gz`` (for Perfetto and chrome://tracing) and ``name.txt``; return their places."""
        assert self._profile is not None, "stop needs a profiler that was started"
        seen, self._profile = self._profile, None
        seen.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        trace, table = self._folder / f"{name}.trace.json.gz", self._folder / f"{name}.txt"
        seen.export_chrome_trace(str(trace))
        table.write_text(_tables(seen), encoding="utf-8")
        return f"{table} and {trace.name} beside it"


def _tables(seen: profile) -> str:
    """Return the most expensive operators in two tables, by their own time and by their own memory."""
    operators = seen.key_averages()
    place = "device" if torch.cuda.is_available() else "cpu"
    columns = {"time": f"self_{place}_time_total", "memory": f"self_{place}_memory_usage"}
    return "\n\n".join(
        f"Operators by their own {what}\n{operators.table(sort_by=column, row_limit=_ROWS)}"
        for what, column in columns.items()
    )
