"""The child process of a tracker, in which a library runs: calls are lines of JSON."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.limited_log import limit_log
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

_SECONDS = 120.0
_SECONDS_BETWEEN_LOOKS = 1.0
_TAIL = 65536
_NICENESS = 10


class Refusal(Exception):
    """Raised by a served object, and by a call of it, if its library cannot do what was asked, but can go on."""


@final
class LibraryProcess:
    """A child process that runs ``module``, which calls ``serve``."""

    def __init__(self, name: str, module: str) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by ``end``
        fcntl.fcntl(self._errors, fcntl.F_SETFL, fcntl.fcntl(self._errors, fcntl.F_GETFL) | os.O_APPEND)
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = subprocess.Popen(  # noqa: S603  this very interpreter
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": paths},
            process_group=0,  # Ctrl-C is for the training process; in a new session Linux would ignore the niceness
        )
        self._received = b""
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Return whether a call got no answer, so that the answers of later ones cannot be told apart."""
        return self._is_lost

    def call(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Call a method of the served object and wait for its end; return its result, as JSON keeps it.

        Raises ``Refusal`` if the method does, and ``StateError`` if it fails in another way or does not end in time.
        """
        self._limit_errors()
        request = json.dumps({"method": method, "arguments": arguments}, default=str)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
            error, refusal, result = json.loads(self._answer())
        except (OSError, EOFError, ValueError) as failure:
            self._is_lost = True
            msg = f"the process of the monitor {self._name} failed at {method}: {self._last_error_line() or failure}"
            raise StateError(msg) from failure
        if error is not None:
            msg = f"the monitor {self._name} failed at {method}: {error}"
            raise StateError(msg)
        if refusal is not None:
            raise Refusal(refusal)
        return result

    def end(self) -> None:
        """Let the process end by itself; it has a limited time for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for file in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # a request that the process did not read
                file.close()
        threading.Thread(target=self._wait, name=f"end of {self._name}", daemon=True).start()

    def _wait(self) -> None:
        """Wait until the process has ended, while its output stays limited."""
        while self._process.poll() is None:
            self._limit_errors()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_BETWEEN_LOOKS)
        self._errors.close()

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + _SECONDS
        output = self._process.stdout.fileno()
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if not select.select([output], [], [], max(0.0, min(left, _SECONDS_BETWEEN_LOOKS)))[0]:
                self._limit_errors()
                if left > 0:
                    continue
                msg = f"no answer within {_SECONDS:.0f} s"
                raise EOFError(msg)
            received = os.read(output, 65536)
            if not received:
                msg = "it has ended"
                raise EOFError(msg)
            self._received += received
        answer, _, self._received = self._received.partition(b"\n")
        return answer

    def _limit_errors(self) -> None:
        with suppress(OSError):
            limit_log(self._errors.fileno())

    def _last_error_line(self) -> str:
        self._errors.seek(-min(_TAIL, self._errors.seek(0, os.SEEK_END)), os.SEEK_END)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def escaped(name: str, reserved: Container[str]) -> str:
    """Return ``name``, or another name if it is among the ``reserved`` ones; ``unescaped`` is the inverse."""
    name = name.encode(errors="backslashreplace").decode()
    return f"{name}_" if name.rstrip("_") in reserved else name


def unescaped(name: str, reserved: Container[str]) -> str:
    """Return the name that ``escaped`` has changed."""
    return name[:-1] if name.rstrip("_") in reserved else name


def serve(target: Any, seconds_to_end: float) -> None:
    """Call the methods of ``target`` that the parent process asks for, until it ends or closes the connection.

    ``close`` with the state None is the last call if the parent did not make it. The process ends at the latest
    ``seconds_to_end`` after the parent closed the connection.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(_NICENESS)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)  # neither may a library ask for a key, nor print between the answers
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, lines, seconds_to_end), daemon=True).start()
    is_closed = False
    while line := lines.get():
        request = json.loads(line)
        is_closed = is_closed or request["method"] == "close"
        error = refusal = result = None
        try:
            result = getattr(target, request["method"])(**request["arguments"])
        except Refusal as what:
            refusal = str(what)
        except Exception as what:  # noqa: BLE001  it is raised in the parent
            error = str(what) if isinstance(what, StateError) else f"{type(what).__name__}: {what}"
        with suppress(OSError):  # the parent may have ended
            answers.write(json.dumps([error, refusal, result]).encode() + b"\n")
    if not is_closed:
        target.close(state=None)


def _read(requests: Any, lines: queue.SimpleQueue[bytes], seconds_to_end: float) -> None:
    for line in requests:
        lines.put(line)
    lines.put(b"")
    time.sleep(seconds_to_end)
    os._exit(1)
