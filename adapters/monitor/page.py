"""Serves the live page of a run from a process of its own."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SECONDS_TO_END = 2.0
_FIRST_PAUSE_SECONDS = 1.0
_MOST_RESTARTS = 5
_ENDS = (0, 2)  # it was asked to end, or cannot work with its settings


@final
class PageMonitor(Monitor):
    """Runs ``command``, which serves the page and reads the run folder itself: figures are not passed on.

    The process starts with the first call, at low priority, and nothing waits for it. ``say`` gets the lines that it
    prints: the address, or an error. If it crashes, a later call starts it again, up to five times, after a pause that
    doubles. It ends with this process, also after SIGKILL, as its standard input ends then.
    Raises ``ConfigurationError`` without the extra ``page``, and ``StateError`` if the process cannot be started.
    """

    def __init__(self, command: Sequence[str], say: Callable[[str], object]) -> None:
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            msg = 'the monitor "page" needs another package: pip install "holdfast-lm[page]"'
            raise ConfigurationError(msg)
        self._command = command
        self._say = say
        self._process: subprocess.Popen[str] | None = None
        self._num_crashes = 0
        self._start_at: float | None = None
        self._closed = False

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._start()

    @override
    def rewind(self, step: int) -> None:
        self._start()

    @override
    def close(self) -> None:
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> None:
        """Start the process, again if it has crashed."""
        if self._closed or (self._process is not None and not self._may_start_again(self._process)):
            return
        try:
            self._process = subprocess.Popen(  # noqa: S603  the caller's own command
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,  # Ctrl-C is for the run, which ends the page after its last step
            )
        except OSError as error:
            msg = f"the page cannot be started: {error.strerror}"
            raise StateError(msg) from error
        Thread(target=self._pass_on, args=(self._process,), name="page", daemon=True).start()

    def _may_start_again(self, process: subprocess.Popen[str]) -> bool:
        if self._start_at is None:
            code = process.poll()
            if code is None or code in _ENDS or self._num_crashes > _MOST_RESTARTS:
                return False
            self._num_crashes += 1
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            told = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            if self._num_crashes > _MOST_RESTARTS:
                self._say(f"the page {told}; it is not started again: open it with the command watch")
                return False
            self._say(f"the page {told}; it is started again")
            self._start_at = time.monotonic() + _FIRST_PAUSE_SECONDS * 2 ** (self._num_crashes - 1)
        if time.monotonic() < self._start_at:
            return False
        self._start_at = None
        return True

    def _pass_on(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._say(line.rstrip())
