"""A tracker whose library runs in a child process."""

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
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.shared.files.json_lines import limit_log
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import Tracker

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from holdfast.ports.monitor import EndState, NoteKind, RunDescription


@final
class LibraryTracker(Tracker):
    """Passes each call of a tracker to an object of the same methods in a child process, where the library runs.

    The threads, exit hooks, output and crashes of the library stay out of the training process, and nothing of the
    library delays the end of that process. The child ignores SIGINT and SIGTERM, and ends when this process ends. It
    may run on for a short time to store the last metrics. A call raises ``StateError`` if the library refuses it, if it
    takes more than two minutes, or if the child has ended. After such an error metrics are lost, so that ``record``
    raises once, and does nothing until ``rewind`` starts a new child.
    """

    def __init__(self, kind: str, package: str, module: str, options: Mapping[str, Any]) -> None:
        """Take the module of the child and the options of its object; ``package`` is the library.

        Raises ``ConfigurationError`` if the library is not installed.
        """
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # without an origin: a folder of this name in the working folder
            msg = f'the monitor "{kind}" needs another package: pip install "holdfast-lm[{kind}]"'
            raise ConfigurationError(msg)
        self._kind = kind
        self._module = module
        self._options = dict(options)
        self._run: dict[str, Any] = {}
        self._process: LibraryProcess | None = None
        self._end: str | None = None
        self._closed = self._has_failed = False

    @override
    def begin(self, run: RunDescription) -> None:
        self._run = asdict(run) | {"folder": str(run.folder.absolute())}
        self._start()

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._closed or not metrics or self._has_failed:
            return
        self._has_failed = True
        self._call("record", step=step, metrics={name: _number(value) for name, value in metrics.items()})
        self._has_failed = False

    @override
    def note(self, step: int, kind: NoteKind, text: str) -> None:
        if not self._closed:
            self._call("note", step=step, kind=str(kind), text=text)

    @override
    def rewind(self, step: int) -> int | None:
        if self._closed:
            return None
        if self._process is None:
            self._start()
        held: int | None = self._call("rewind", step=step)
        self._has_failed = False
        return held

    @override
    def flush(self) -> None:
        if not self._closed:
            self._call("flush")

    @override
    def finish(self, state: EndState) -> None:
        self._end = str(state)

    @override
    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._process is not None:
            try:
                self._call("close", state=self._end)
            finally:
                self._give_up()

    def _start(self) -> None:
        self._give_up()
        self._process = LibraryProcess(self._kind, self._module)
        self._call("begin", run=self._run, options=self._options)

    def _call(self, method: str, **arguments: Any) -> Any:
        if self._process is None:
            msg = f"the process of the monitor {self._kind} has ended"
            raise StateError(msg)
        try:
            return self._process.call(method, arguments)
        except Refusal as refusal:
            msg = f"the monitor {self._kind}: {refusal}"
            raise StateError(msg) from refusal
        except StateError:
            if method != "note" or self._process.is_lost:
                self._give_up()
            raise

    def _give_up(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()


def _number(value: float) -> float:
    return value if isinstance(value, int) else float(value)


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
