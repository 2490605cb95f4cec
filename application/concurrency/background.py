"""A thread that makes calls one after another, so that the caller need not wait."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class BackgroundWorker:
    """Makes calls one after another, in order, in a thread of its own, from the first call to ``close``.

    An error does not prevent later calls; ``raise_errors`` raises it in the caller's thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._errors: SimpleQueue[Exception] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Return how many calls have not begun."""
        return self._calls.qsize()

    def submit(self, call: Callable[[], object]) -> None:
        """Queue ``call`` after the earlier calls."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def settle(self, seconds: float | None) -> bool:
        """Wait up to ``seconds`` (None: without limit) for the calls submitted so far; return whether all were made."""
        if self._thread is None:
            return True
        made = threading.Event()
        self._calls.put(made.set)
        return made.wait(seconds)

    def raise_errors(self) -> None:
        """Raise the error of the calls since the last call of this method; raises several as an ``ExceptionGroup``."""
        errors = [self._errors.get() for _ in range(self._errors.qsize())]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            msg = f"several calls of {self._name} failed"
            raise ExceptionGroup(msg, errors)

    def close(self, seconds: float | None) -> None:
        """End the thread after the last call; abandon it if that takes more than ``seconds``."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(None)
            thread.join(seconds)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001  raised by ``raise_errors``
                self._errors.put(error)
            del call  # it may hold large objects, and the next one may come much later
