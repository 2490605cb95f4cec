"""The threads of this program, which are to end before the interpreter does."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_OUR_PACKAGE = "holdfast"


def let_own_threads_end(seconds: float) -> bool:
    """Wait at most so many ``seconds`` for every thread that runs code of ours but this one; return whether all ended.

    An interpreter that is torn down under a thread in native code, as one that imports a library, may abort. Threads
    that libraries keep for themselves are theirs to end.
    """
    deadline = time.monotonic() + seconds
    for thread in own_threads():
        thread.join(max(0.0, deadline - time.monotonic()))
    return not own_threads()


def own_threads() -> list[threading.Thread]:
    """Return the other threads that are at work in code of ours, or in what it has called."""
    frames = sys._current_frames()  # noqa: SLF001  documented in spite of its name
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return [thread for thread in others if thread.ident in frames and any(map(_is_ours, _stack(frames[thread.ident])))]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _OUR_PACKAGE
