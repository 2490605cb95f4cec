"""A pool of daemon threads of variable size."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")


_LOOK_SECONDS = 0.1


@final
class ThreadPool:
    """Makes calls in ``threads`` daemon threads.

    Unlike those of ``concurrent.futures``, they cannot keep a process alive when a read hangs.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._name = name
        self._size = 0
        self._threads: list[Thread] = []
        self.resize(threads)

    def submit(self, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> Future[R]:
        """Queue a call for the next free thread; return its future."""
        future: Future[R] = Future()
        self._calls.put((future, partial(function, *arguments, **options)))
        return future

    def resize(self, threads: int) -> None:
        """Use ``threads`` threads from now on; surplus ones end once all calls submitted before this have started.

        Do not call this during or after ``close``.
        """
        for _ in range(threads, self._size):
            self._calls.put(None)
        for _ in range(self._size, threads):
            thread = Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._size = threads

    def wait(self, making: Sequence[Future[Any]], look: Callable[[], object]) -> None:
        """Wait until all calls of ``making`` have ended, or one has failed.

        ``look`` is called ten times a second meanwhile; its error ends the wait, and is raised.
        """
        while True:
            ended, waiting = wait(making, timeout=_LOOK_SECONDS, return_when=FIRST_EXCEPTION)
            if not waiting or any(each.cancelled() or each.exception() is not None for each in ended):
                return
            look()

    def close(self, seconds: float) -> None:
        """Cancel the calls that have not started, and wait at most ``seconds`` for those that have."""
        self._cancel_waiting()
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _cancel_waiting(self) -> None:
        with suppress(Empty):
            while True:
                waiting = self._calls.get_nowait()
                if waiting is not None:
                    waiting[0].cancel()

    def _work(self) -> None:
        while (waiting := self._calls.get()) is not None:
            future, call = waiting
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001  raised where the result is asked for
                    future.set_exception(error)
                except BaseException as error:  # for example a panic of a Rust library
                    future.set_exception(error)
                    raise
            del waiting, future, call  # the result belongs to the caller


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
