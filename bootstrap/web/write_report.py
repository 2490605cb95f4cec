"""Writes reports on runs to files."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.atomic_replace import replace_file
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.regular_file import open_regular
from holdfast.bootstrap.operations.report_facts import report_facts
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.web.report_html import GENERATOR, html_report
from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import ConfigurationError, StateError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEAD = 4_096


def default_output(runs: Sequence[Path]) -> Path:
    """Return the file of the HTML report on ``runs``: in the run folder, or in the current folder for several runs.

    Raises ``ConfigurationError`` if another file than a report stands there.
    """
    path = RunLayout(runs[0]).report if len(runs) == 1 else Path(RunLayout(Path()).report.name)
    if not _may_replace(path):
        msg = f"{path} exists and is no report: name another file with --output"
        raise ConfigurationError(msg)
    return path


def write_text(path: Path, text: str, *, is_shared: bool = True) -> None:
    """Write ``text`` to ``path`` atomically; raises ``StateError`` if that is not possible.

    ``is_shared`` is as in ``replace_file``.
    """
    try:
        replace_file(path, text.encode("utf-8", "replace"), is_shared=is_shared)
    except OSError as error:
        msg = f"{path} cannot be written, {explain(error)}"
        raise StateError(msg) from error


def write_at_end(run: Path, say: Callable[[str], object], seconds: float) -> Path | None:
    """Write the report on ``run`` into its folder when a start has ended; return its path.

    Returns None, after one line to ``say``, if it cannot be written or that takes more than ``seconds``; no error is
    raised. A folder without the record of a run is left alone.
    """
    layout = RunLayout(run)
    if not layout.record.exists():
        return None
    writer = _Writer(run)
    thread = threading.Thread(target=writer.write, name="report", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        command = shlex.join([*called_as(), "report", str(run)])
        say(f"no report was written, as it takes more than {seconds:.0f} s: {command}")
    elif writer.problem is not None:
        say(one_line(f"no report was written: {writer.problem}"))
    else:
        return layout.report
    return None


@final
class _Writer:
    """Writes the report on ``run`` into its folder; an error becomes the sentence ``problem``."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.problem: str | None = None

    def write(self) -> None:
        """Write the report."""
        try:
            path = default_output([self._run])
            # only one start trains a run at a time, so the next one replaces a draft that a failing disk left
            write_text(path, html_report([report_facts(self._run)]), is_shared=False)
        except TrainingError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001  a run has ended well, whatever becomes of its report
            self.problem = f"{type(error).__name__}: {error}"


def _may_replace(path: Path) -> bool:
    """Return whether there is nothing at ``path``, or a report."""
    try:
        with open_regular(path) as file:
            return GENERATOR.encode() in file.read(_HEAD)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
