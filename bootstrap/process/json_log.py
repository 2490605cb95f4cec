"""The log of a run as JSON lines on standard output: its events, metrics and messages."""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, final

import structlog
from typing_extensions import override

from holdfast.adapters.monitor.console import is_problem
from holdfast.adapters.shared.files.json_lines import encode_record
from holdfast.application.handlers.log_events import sentence_of
from holdfast.application.handlers.record_events import record_of
from holdfast.configs.secret_masking import mask, mask_text
from holdfast.domain.events import Event, RunFailed, StepCompleted
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from typing import TextIO

    from holdfast.ports.event_bus import EventBus

_MOST_WAITING = 10_000
_SECONDS_TO_FLUSH = 2.0
_SECONDS_OF_A_WRITE = 0.2
"""After which its reader is behind: a pipe is full."""
_LEVELS = {"error: ": "error", "warning: ": "warning", "Traceback ": "error"}
"""By the beginnings of printed lines."""


@final
class JsonLog:
    """Writes lines such as ``{"time": ..., "level": "info", "event": "metrics", "step": 3, ...}`` to ``stream``.

    ``event`` is the class of an event of the run, ``metrics``, ``result`` at the end, or ``message`` for a text. NaN
    and the infinities are strings. If ``is_quiet``, only lines of the levels ``warning`` and ``error`` are written, and
    the result. A separate thread writes, so a full pipe does not block training: if more than 10,000 lines wait, the
    oldest are dropped, which a line says. All methods may be called from any thread.
    """

    def __init__(self, stream: TextIO, *, is_quiet: bool = False) -> None:
        self._stream = stream
        self._is_quiet = is_quiet
        self._lines: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._dropped = 0
        self._writes_since: float | None = None
        self._printed: Sequence[_PrintedLines] = ()
        self._change = Condition()
        self._thread: Thread | None = None
        self._sentence: str | None = None

    def write(self, event: str, fields: Mapping[str, Any], *, level: str = "info") -> None:
        """Write a line of ``level`` with ``fields``; secrets are masked, and what JSON does not know is text."""
        if self._is_quiet and level == "info" and event != "result":
            return
        line = encode_record(_head(event, level) | mask(_plain(fields)))
        with self._change:
            self._dropped += len(self._lines) == _MOST_WAITING
            self._lines.append(line)
            if self._thread is None:
                self._thread = Thread(target=self._work, name="log", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def say(self, text: str, level: str | None = None) -> None:
        """Write ``text`` as a message, unless it only puts the event that was written last into words."""
        if text == self._sentence:
            self._sentence = None
            return
        begin = next((begin for begin in _LEVELS if text.startswith(begin)), "")
        level = level or _LEVELS.get(begin) or ("warning" if is_problem(text) else "info")
        self.write("message", {"message": text.removeprefix(begin) if begin.endswith(": ") else text}, level=level)

    def on_event(self, event: Event) -> None:
        """Write ``event``, with a sentence on it if it has one; steps are among the metrics."""
        if isinstance(event, StepCompleted):
            return
        record, sentence = record_of(event), sentence_of(event)
        del record["time"]
        self._sentence = None if sentence is None else mask_text(sentence)
        level = "error" if isinstance(event, RunFailed) else "warning" if is_problem(sentence or "") else "info"
        message = {} if sentence is None else {"message": sentence}
        self.write(record.pop("event"), record | message, level=level)

    def listening(self, bus: EventBus) -> EventBus:
        """Return ``bus``, whose events come here first from now on."""
        bus.subscribe(Event, self.on_event)
        return bus

    def write_at_once(self, sentence: str) -> None:
        """Write ``sentence`` without any buffer or lock, for the answer to a signal."""
        os.write(self._stream.fileno(), encode_record(_head("message", "info") | {"message": sentence}))

    def flush(self) -> None:
        """Wait until all lines are written, for two seconds at most."""
        with self._change:
            self._change.wait_for(self._has_written, _SECONDS_TO_FLUSH)

    def catch_up(self) -> None:
        """Wait until all lines are written, or the reader is behind."""
        with self._change:
            while not self._has_written():
                since = time.monotonic() if self._writes_since is None else self._writes_since
                if (seconds := since + _SECONDS_OF_A_WRITE - time.monotonic()) <= 0:
                    return
                self._change.wait(seconds)

    def take_prints(self) -> None:
        """Have what this process prints come here, until it ends."""
        self._printed = [_PrintedLines(self, stream) for stream in (sys.stdout, sys.stderr)]
        sys.stdout, sys.stderr = self._printed
        atexit.register(self.end)

    def end(self) -> None:
        """Write what was printed without the end of a line, and wait as ``flush`` does."""
        for lines in self._printed:
            lines.end()
        self.flush()

    def _has_written(self) -> bool:
        return not self._lines and self._writes_since is None

    def _work(self) -> None:
        while True:
            with self._change:
                self._writes_since = None
                self._change.notify_all()
                self._change.wait_for(lambda: self._lines)
                self._writes_since = time.monotonic()
                text, dropped = b"".join(self._lines), self._dropped
                self._lines.clear()
                self._dropped = 0
            try:
                if dropped:
                    told = {"message": f"{dropped} lines of the log were dropped, as its reader is slow"}
                    text = encode_record(_head("message", "warning") | told) + text
                self._stream.write(text.decode())
                self._stream.flush()
            except (OSError, ValueError):  # its reader has gone, or its disk is full: training goes on
                continue


@final
class LoggedFigures(Monitor):
    """Writes each record of metrics to ``log``."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        figures = {name: value if isinstance(value, int) else float(value) for name, value in metrics.items()}
        self._log.write("metrics", {"step": step, "metrics": figures})

    @override
    def rewind(self, step: int) -> None:
        pass

    @override
    def close(self) -> None:
        pass


@final
class _PrintedLines(io.TextIOBase):
    """A text stream whose lines become messages of a log, such as those that ``print`` and libraries write."""

    encoding = "utf-8"

    def __init__(self, log: JsonLog, stream: TextIO) -> None:
        self._log = log
        self._stream = stream
        self._begun = ""

    @override
    def write(self, text: str) -> int:
        self._begun += text
        if self._begun.endswith("\n"):
            self.end()
        return len(text)

    def end(self) -> None:
        """Write what has come as a message, also without the end of a line."""
        whole, self._begun = self._begun.strip("\n"), ""
        if whole.strip():
            self._log.say(whole)

    @override
    def flush(self) -> None:
        self._log.catch_up()

    @override
    def fileno(self) -> int:
        return self._stream.fileno()

    @override
    def writable(self) -> bool:
        return True


def log_as_json(*, is_quiet: bool) -> JsonLog:
    """Have all that this process prints, on either stream, written as JSON lines on standard output; return the log.

    Lines of structlog too, whose configuration is replaced.
    """
    log = JsonLog(sys.stdout, is_quiet=is_quiet)
    log.take_prints()

    def receive(_logger: object, level: str, record: MutableMapping[str, Any]) -> str:
        event = str(record.pop("event", ""))
        if record:
            log.write(event, record, level=level)
        else:
            log.say(event, None if level == "info" else level)
        raise structlog.DropEvent

    configure_logging()
    structlog.configure(processors=[structlog.processors.format_exc_info, receive])
    return log


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: a plug-in or a library may log anything."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _head(event: str, level: str) -> dict[str, Any]:
    head = {"time": datetime.now(UTC).isoformat(), "level": level, "event": event}
    rank = os.environ.get("RANK")
    with suppress(ValueError):
        return head if rank is None else head | {"rank": int(rank)}
    return head


def configure_logging() -> None:
    """Send structured log lines to standard error.

    Only the command line calls this: an embedding host keeps its own logging.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a kernel of the hub that is never used
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=False,
    )


def _to_standard_error(*_: object) -> structlog.PrintLogger:
    # looked up for each line, so that a later redirection of standard error, or its closing, is respected
    return structlog.PrintLogger(sys.stderr)
