"""Serves the live page of a run from a process of its own."""

from __future__ import annotations

import math
import signal
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
_SECONDS_TO_FORGET = 600.0
_MOST_RESTARTS = 5
_REFUSED = 2  # the exit code for settings that do not work
_ENDS = (0, _REFUSED, -signal.SIGTERM)


@final
class PageMonitor(Monitor):
    """Runs ``command``, which serves the page and reads the run folder itself: figures are not passed on.

    The process starts with the first call, at low priority, and nothing waits for it. ``say`` gets the lines that it
    prints: the address, or an error. If it crashes, a later call starts it again after a pause of ``first_pause``
    seconds, which doubles, up to five times in a row. It ends with this process, also after SIGKILL, as its standard
    input ends then. Raises ``ConfigurationError`` without the extra ``page``, and ``StateError`` if the process cannot
    be started.
    """

    def __init__(self, command: Sequence[str], say: Callable[[str], object], *, first_pause: float = 1.0) -> None:
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            msg = 'the monitor "page" needs another package: pip install "holdfast-lm[page]"'
            raise ConfigurationError(msg)
        self._command = command
        self._say = say
        self._process: subprocess.Popen[str] | None = None
        self._first_pause = first_pause
        self._num_crashes = 0
        self._started_at = self._starts_at = -math.inf
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
        """Start the process, or start it again if it has crashed and its pause is over."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._note_end(self._process, code)
        if self._process is not None or self._closed or time.monotonic() < self._starts_at:
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
        self._started_at = time.monotonic()
        Thread(target=self._pass_on, args=(self._process,), name="page", daemon=True).start()

    def _note_end(self, process: subprocess.Popen[str], code: int) -> None:
        """Forget ``process``, which has ended with ``code``, and decide when the next one starts."""
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        self._process = None
        now = time.monotonic()
        self._num_crashes = 1 if now - self._started_at > _SECONDS_TO_FORGET else self._num_crashes + 1
        if code in _ENDS and not (code == _REFUSED and self._num_crashes > 1):  # its port may be taken for a moment
            self._starts_at = math.inf
            return
        ending = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._num_crashes > _MOST_RESTARTS:
            self._starts_at = math.inf
            self._say(f"the page {ending}; it is not started again: open it with the command watch")
        else:
            self._starts_at = now + self._first_pause * 2 ** (self._num_crashes - 1)
            self._say(f"the page {ending}; it is started again")

    def _pass_on(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._say(line.rstrip())
