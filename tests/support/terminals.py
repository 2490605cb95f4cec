"""A command on a pseudo terminal, and what a person sees there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.support.command_line import environment, try_new

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_SECONDS = 100.0


class Terminal:
    """``python -m application`` with ``arguments`` on a terminal of so many ``columns``, until its end."""

    def __init__(self, *arguments: str, cwd: Path, columns: int, before: Callable[[], object] | None = None) -> None:
        self._side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.columns = columns
        self._given = arguments, cwd
        self._written = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "application", *arguments],
            cwd=cwd,
            env={name: value for name, value in environment().items() if name != "COLUMNS"} | {"TERM": "xterm"},
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=before,  # noqa: PLW1509  it only sets a limit
        )
        os.close(other)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._written += os.read(self._side, 65536)
            except OSError:  # the other side is closed by all who had it
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._side)

    @property
    def text(self) -> str:
        """Return all that was drawn so far, without control sequences."""
        return _CONTROL.sub("", self._written.decode(errors="ignore"))

    @property
    def lines(self) -> list[str]:
        """Return each line that was printed or drawn, in order, also those that were drawn over."""
        return [line for line in re.split(r"[\r\n]+", self.text) if line]

    def wait_for(self, pattern: str) -> float:
        """Return how many seconds it took until ``pattern`` was there."""
        began = time.monotonic()
        while re.search(pattern, self.text) is None:
            assert time.monotonic() - began < _SECONDS, self.text[-2000:]
            assert self.process.poll() is None or re.search(pattern, self.text), self.text[-2000:]
            time.sleep(0.01)
        return time.monotonic() - began

    def end(self) -> int:
        """Return the exit code, once all was drawn and what is said to try next works."""
        code = self.process.wait(_SECONDS)
        self._reader.join(60)
        arguments, cwd = self._given
        try_new(arguments, self.text, cwd=cwd)
        return code
