"""The bounds on what a chat template, which may be anybody's, takes to render a conversation."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from ctypes import c_ulong, py_object, pythonapi
from functools import lru_cache
from typing import TYPE_CHECKING, final

import psutil

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 20.0  # seconds of the processor; a usual conversation takes a thousandth
MOST_MEMORY = 1 << 30  # bytes that the process grows by while one conversation is rendered
MOST_CHARACTERS = 1 << 26
_EVERY = 0.2  # seconds
_thread_clock = getattr(time, "pthread_getcpuclockid", lambda _: time.CLOCK_MONOTONIC)  # which macOS does not have


class _LimitExceeded(BaseException):
    """Raised in the thread of a rendering that takes too much; a template cannot catch it."""


@final
class _Rendering:
    """A rendering in the thread that makes this object; ``check`` is called in another one."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._clock = _thread_clock(self._thread)  # which a busy or suspended machine does not advance
        self._end = time.clock_gettime(self._clock) + LONGEST
        self._lock = threading.Lock()
        self._memory: int | None = None  # of this process when the rendering was first looked at
        self._is_over = False
        self.excess = ""

    def check(self, memory: int) -> None:
        """Stop the rendering if it exceeds a limit; ``memory`` are the bytes that this process holds."""
        with self._lock:
            self._memory = memory if self._memory is None else self._memory
            if self._is_over:
                return
            if time.clock_gettime(self._clock) > self._end:
                self.excess = f"does not end within {LONGEST:g} seconds for one conversation"
            elif memory - self._memory > MOST_MEMORY:
                self.excess = f"takes more than {shown_size(MOST_MEMORY)} of memory for one conversation"
            if self.excess:
                self._is_over = True
                pythonapi.PyThreadState_SetAsyncExc(c_ulong(self._thread), py_object(_LimitExceeded))

    def finish(self) -> None:
        """End the rendering; raises ``_LimitExceeded`` if that was on its way."""
        with self._lock:
            self._is_over = True
        if self.excess:  # withdrawn by SetAsyncExc, it would leave Python 3.11 in a state in which a profiler hangs
            for _ in range(1000):
                pass


_renderings: set[_Rendering] = set()
_watchers: list[threading.Thread] = []


def within_limits(source: str, render: Callable[[], str]) -> str:
    """Return what ``render`` makes of the chat template ``source`` within ``LONGEST`` seconds and ``MOST_MEMORY``.

    Raises ``ConfigurationError`` if it takes more, gives a text beyond all measure, or if ``source`` computes powers,
    which nothing can interrupt.
    """
    if _has_power(source):
        what = "computes a power by **, which may never end"
        raise _refusal(what)
    rendering = _Rendering()
    try:
        _renderings.add(rendering)
        _watch()
        try:
            text = render()
        finally:
            rendering.finish()
    except _LimitExceeded:
        raise _refusal(rendering.excess) from None
    finally:
        _renderings.discard(rendering)
    if len(text) > MOST_CHARACTERS:
        what = f"makes {len(text):,} characters of one conversation"
        raise _refusal(what)
    return text


def _refusal(what: str) -> ConfigurationError:
    return ConfigurationError(f"the chat template {what}: use another template by data.chat.template, or another model")


@lru_cache
def _has_power(source: str) -> bool:
    from jinja2 import Environment, TemplateSyntaxError  # part of transformers, which takes seconds

    before = ""
    try:
        for _, kind, text in Environment().lex(source):  # noqa: S701  nothing is rendered
            if text == "**" and kind == "operator" and before not in ("(", ","):  # which begin keyword arguments
                return True
            before = before if kind == "whitespace" else text
    except TemplateSyntaxError:
        return False  # rendering reports it
    return False


def _watch() -> None:
    if not (_watchers and _watchers[-1].is_alive()):  # none is in a process that was forked
        _watchers[:] = [threading.Thread(target=_check_all, name="chat-template-limit", daemon=True)]
        _watchers[0].start()


def _check_all() -> None:
    process = psutil.Process()
    while True:
        memory = process.memory_info().rss
        for rendering in list(_renderings):
            with suppress(OSError):  # its thread is not in a process that was forked
                rendering.check(memory)
        time.sleep(_EVERY)
        if not _renderings:
            _watchers.clear()  # first, so that a rendering that begins now either is seen here or starts another
            if not _renderings:
                return
            _watchers[:] = [threading.current_thread()]
