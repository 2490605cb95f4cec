"""Runs in child processes, in a temporary folder of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.bootstrap.process.exit_codes import code_of_child
from holdfast.bootstrap.process.printing import report_line
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ChildFailedError(Exception):
    """The failure of a run in a child process with the exit code ``code``; the run itself has printed the reason."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def room_beside(directory: Path, prefix: str, *, keep: bool) -> Iterator[Path]:
    """Give a new folder beside the run folder ``directory``, deleted after the block unless ``keep``.

    Its name begins with ``prefix``. Raises ``StateError`` if it cannot be created.
    """
    parent = next(folder for folder in directory.absolute().parents if folder.is_dir())
    try:
        room = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        msg = f"{parent} cannot be written, {explain(error)}: name another run.dir"
        raise StateError(msg) from error
    try:
        yield room
    finally:
        if keep:
            report_line(f"kept: {room}")
        else:
            shutil.rmtree(room, ignore_errors=True)


def run_in_child(command: Sequence[str], log: Path) -> tuple[int, str]:
    """Run ``command`` in a new process; return its exit code, as a shell reports it, and its standard error.

    What it prints goes to standard error. It is killed, with its own children, if an exception ends the wait.
    """
    with log.open("wb") as errors:
        # in a session of its own: a terminal's Ctrl-C reaches only this process, which ends the others
        process = subprocess.Popen(  # noqa: S603  this very program
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait()
        finally:
            _end(process)
    return code_of_child(code), log.read_text(encoding="utf-8", errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the remaining processes of a run and its ranks."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=10)
    process.wait()
