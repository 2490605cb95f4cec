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
    """Wait at most ``seconds`` for all other threads that run code of ours; return whether all ended.

    An interpreter that shuts down while a thread is in native code, such as an import, may abort. Libraries end their
    own threads.
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
