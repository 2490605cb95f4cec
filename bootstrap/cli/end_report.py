"""The report that a run writes when it ends."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.process.printing import fitting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.bootstrap.run import Run

_SECONDS = 10.0
_SECONDS_AFTER_SIGNAL = 2.0


@final
class EndReport:
    """Writes ``report.html`` when ``run`` has ended, unless ``run.report`` is off or this is not the first rank.

    A start that is refused, because another process trains the run or a setting would make another run, writes none.
    ``path`` is the file once it is written.
    """

    def __init__(self, run: Run, *, is_first_rank: bool) -> None:
        self._run = run
        self._is_wanted = is_first_rank and run.settings.run.report
        self.path: Path | None = None

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write the report at the end of this context and after an error, but not if the process is told to end now."""
        try:
            yield
        except Exception:
            self._write()
            raise
        self._write()

    def _write(self) -> None:
        if not self._is_wanted or not self._run.has_folder:
            return
        from holdfast.bootstrap.web.write_report import write_at_end

        stop = self._run.stopped_by
        seconds = _SECONDS if stop is None or stop.signal is None else _SECONDS_AFTER_SIGNAL
        self.path = write_at_end(self._run.directory, _say, seconds)


def _say(line: str) -> None:
    print(fitting(line, sys.stderr), file=sys.stderr)
