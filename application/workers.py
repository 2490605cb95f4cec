"""Threads that work for somebody who may leave."""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


@final
class Workers:
    """Makes calls in ``threads`` threads that a process does not wait for at its end.

    It does wait for those of ``concurrent.futures``: a read that hangs would keep it from ending.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [Thread(target=self._work, name=f"{name}_{number}", daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> Future[R]:
        """Have a call made by the next thread that is free."""
        future: Future[R] = Future()
        self._calls.put((future, partial(function, *arguments, **options)))
        return future

    def close(self, seconds: float) -> None:
        """Cancel the calls that have not begun, and wait at most so many ``seconds`` for those that have."""
        while (waiting := self._next_waiting()) is not None:
            waiting.cancel()
        for _ in self._threads:
            self._calls.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _next_waiting(self) -> Future[Any] | None:
        try:
            waiting = self._calls.get_nowait()
        except Empty:
            return None
        return None if waiting is None else waiting[0]

    def _work(self) -> None:
        while (waiting := self._calls.get()) is not None:
            future, call = waiting
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001  raised where the result is asked for
                    future.set_exception(error)
                except BaseException as error:  # such as the panic of a library in Rust
                    future.set_exception(error)
                    raise
            del waiting, future, call  # what was made belongs to whoever asked for it
