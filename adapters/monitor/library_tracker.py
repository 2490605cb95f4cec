"""A tracker whose library runs in a child process."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.monitor.library_process import LibraryProcess, Refusal
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import Tracker

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        found = find_spec(package)
        if found is None or found.origin is None:  # without an origin: a folder of this name in the working folder
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
