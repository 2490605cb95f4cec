"""A training run for hosts with an asyncio event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, final, overload

from typing_extensions import override

from holdfast.bootstrap.run import Run, build
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import Event, StepCompleted
from holdfast.ports.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from holdfast.bootstrap.adapter_choice.part_overrides import RunOptions
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.step_outcome import Progress

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Event)
G = TypeVar("G", bound=Event)

LONGEST_BACKLOG = 1000
_SECONDS_FOR_CALLBACKS = 10.0
_log = logging.getLogger("holdfast")


def build_async(settings: TrainSettings, **options: Unpack[RunOptions]) -> AsyncRun:
    """Return a run of ``settings`` that has not begun; ``options`` and errors are those of ``build``."""
    return AsyncRun(settings, **options)


@final
class AsyncRun:
    """A run that is awaited, and followed as an asynchronous iterator of its events, from one event loop.

    Training has a thread of its own: the event loop stays free, and a slow reader never delays a step. Callbacks are
    called in the event loop. ``run`` is the run itself, for what needs no event loop.
    """

    def __init__(self, settings: TrainSettings, **options: Unpack[RunOptions]) -> None:
        self._figures = _Figures()
        options["added_monitors"] = [*options.get("added_monitors", ()), self._figures]
        self.run: Run = build(settings, **options)
        self._streams: list[EventStream[Any]] = []
        self._callbacks: list[_Callback] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_ended = False
        self.run.subscribe(Event, self._on_event)

    async def run_async(self) -> Progress:
        """Train from the newest valid checkpoint to the end; return the progress.

        If the task is cancelled, the run saves and stops, and ``CancelledError`` is raised once it has. Raises the
        errors of ``Run.run``. All streams of events end with the run. Asynchronous callbacks are awaited at the end
        too, for ten seconds at most.
        """
        self._loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "training")
        training = self._loop.run_in_executor(thread, self._train)
        thread.shutdown(wait=False)
        try:
            return await asyncio.shield(training)
        except asyncio.CancelledError:
            self.run.request_stop("the task that awaits the run was cancelled")
            await asyncio.wait([training])
            if (error := training.exception()) is not None:
                raise error from None
            raise
        finally:
            await self._end_callbacks()

    @overload
    def events(self, *, backlog: int = ...) -> EventStream[Event]: ...
    @overload
    def events(self, kind: type[E], /, *, backlog: int = ...) -> EventStream[E]: ...
    @overload
    def events(self, kind: type[E], other: type[F], /, *, backlog: int = ...) -> EventStream[E | F]: ...
    @overload
    def events(
        self, kind: type[E], other: type[F], third: type[G], /, *, backlog: int = ...
    ) -> EventStream[E | F | G]: ...
    @overload
    def events(self, *kinds: type[E], backlog: int = ...) -> EventStream[E]: ...
    def events(self, *kinds: type[Event], backlog: int = LONGEST_BACKLOG) -> EventStream[Any]:
        """Return a stream of the events of ``kinds`` from now on, of all events if none is named; callable any time.

        ``backlog`` is the number of events that wait for a slow reader; the oldest are dropped beyond it.
        """
        stream: EventStream[Any] = EventStream(kinds or (Event,), backlog, self._leave)
        self._streams.append(stream)
        if self._has_ended:
            stream.end()
        return stream

    def on_progress(self, callback: Callable[[Progress], object]) -> None:
        """Call ``callback`` in the event loop with the progress after each step; call this before ``run_async``.

        What it returns is awaited if it can be. Its calls follow one another; the oldest of more than 1,000 that wait
        are dropped. Its first error is logged.
        """
        call = self._caller(callback)
        self.run.subscribe(StepCompleted, lambda event: call(event.progress))

    def on_metrics(self, callback: Callable[[int, Mapping[str, float]], object]) -> None:
        """Call ``callback`` in the event loop as ``on_progress`` does, with a step and the metrics of a monitor."""
        self._figures.callbacks.append(self._caller(callback))

    def request_stop(self, reason: str) -> None:
        """Ask the run to save and stop at the next step boundary; ``run_async`` returns then."""
        self.run.request_stop(reason)

    def _train(self) -> Progress:
        try:
            return self.run.run()
        finally:
            self._has_ended = True
            for stream in tuple(self._streams):
                stream.end()

    def _on_event(self, event: Event) -> None:
        for stream in tuple(self._streams):
            if isinstance(event, stream.kinds):
                stream.add(event)

    def _caller(self, callback: Callable[..., object]) -> Callable[..., object]:
        """Return a function for any thread that calls ``callback`` in the event loop."""
        called = _Callback(callback)
        self._callbacks.append(called)

        def call(*arguments: object) -> None:
            assert self._loop is not None, "the run trains, so it was awaited"
            with suppress(RuntimeError):  # the event loop was closed, and nobody is left to be told
                self._loop.call_soon_threadsafe(called.call, *arguments)

        return call

    async def _end_callbacks(self) -> None:
        end = time.monotonic() + _SECONDS_FOR_CALLBACKS
        while tasks := [each.task for each in self._callbacks if each.task is not None]:
            done, _ = await asyncio.wait(tasks, timeout=max(0.0, end - time.monotonic()))
            if not done:
                _log.warning("callbacks of the run have not ended within %g s", _SECONDS_FOR_CALLBACKS)
                return

    def _leave(self, stream: EventStream[Any]) -> None:
        with suppress(ValueError):
            self._streams.remove(stream)


@final
class _Callback:
    """Calls ``callback`` in the event loop, one call after another, and awaits what it returns if that can be."""

    def __init__(self, callback: Callable[..., object]) -> None:
        self._callback = callback
        self._waiting: deque[tuple[object, ...]] = deque(maxlen=LONGEST_BACKLOG)
        self._has_failed = False
        self.task: asyncio.Task[None] | None = None

    def call(self, *arguments: object) -> None:
        """Call it now, or after the calls that have not ended; in the event loop."""
        self._waiting.append(arguments)
        if self.task is None:
            self._next()

    def _next(self) -> None:
        self.task = None
        while self._waiting and self.task is None:
            with self._logged():
                returned = self._callback(*self._waiting.popleft())
                if isawaitable(returned):
                    self.task = asyncio.get_running_loop().create_task(self._wait(returned))

    async def _wait(self, returned: Awaitable[object]) -> None:
        try:
            with self._logged():
                await returned
        finally:
            if self._is_cancelled:
                self._waiting.clear()
            self._next()

    @property
    def _is_cancelled(self) -> bool:
        """Return whether the current task is that of a call, and was cancelled from outside, as when its loop ends."""
        task = asyncio.current_task()
        return task is not None and task is self.task and task.cancelling() > 0

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except (Exception, asyncio.CancelledError):  # training goes on whatever a callback raises
            if self._is_cancelled:
                raise
            if not self._has_failed:
                _log.exception("a callback of the run failed; its later errors are not logged")
            self._has_failed = True


@final
class EventStream(Generic[E]):
    """Events of a run in their order, as an asynchronous iterator that ends with the run; for one reader.

    ``missed`` counts the events that were dropped because the reader was slower than the run.
    """

    def __init__(self, kinds: tuple[type[Event], ...], backlog: int, leave: Callable[[EventStream[E]], object]) -> None:
        if backlog < 1:
            msg = f"a stream of events needs a backlog of at least 1, not {backlog}"
            raise ConfigurationError(msg)
        self.kinds = kinds
        self.missed = 0
        self._leave = leave
        self._waiting: deque[E] = deque(maxlen=backlog)
        self._lock = threading.Lock()
        self._has_ended = False
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def add(self, event: E) -> None:
        """Append ``event``; from any thread, without waiting."""
        with self._lock:
            self.missed += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(event)
        self._wake()

    def end(self) -> None:
        """End the stream once the events that wait were read; from any thread."""
        self._has_ended = True
        self._wake()

    async def aclose(self) -> None:
        """Receive no more events."""
        self._leave(self)
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """Return the next event; raises ``StopAsyncIteration`` at the end of the run."""
        if self._reader is None:
            self._reader = (asyncio.get_running_loop(), asyncio.Event())
        has_more = self._reader[1]
        while True:
            has_more.clear()
            has_ended = self._has_ended  # before the look, so that no event that came first is left
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
            if has_ended:
                self._leave(self)
                raise StopAsyncIteration
            await has_more.wait()

    def _wake(self) -> None:
        if (reader := self._reader) is not None:
            with suppress(RuntimeError):  # its event loop was closed
                reader[0].call_soon_threadsafe(reader[1].set)


@final
class _Figures(Monitor):
    """Passes metrics on to callbacks."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[int, Mapping[str, float]], object]] = []

    @override
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        for callback in self.callbacks:
            callback(step, metrics)

    @override
    def rewind(self, step: int) -> None:
        pass

    @override
    def close(self) -> None:
        pass
