"""A process of several ends when the launcher that started it is gone."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.bootstrap.process.exit_codes import code_of_signal
from holdfast.bootstrap.process.launch import launcher_of
from holdfast.bootstrap.wiring.process_group import is_launched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_SECONDS = 0.5
_UNBEGUN_SECONDS = 5.0  # for a run that has nothing to save yet
_SAY_SECONDS = 2.0  # a terminal may be held, a pipe be full


@contextmanager
def ending_with_launcher(
    request_stop: Callable[[str, int], bool],
    grace_seconds: float,
    *,
    parent_of: Callable[[], int] = os.getppid,
    end: Callable[[int], object] = os._exit,
) -> Iterator[None]:
    """Within the block, a process that a launcher started saves and ends once that launcher is gone.

    Nothing else would end it. ``request_stop`` is called first, as by SIGTERM; it returns whether a run is there to
    stop. If the process has not left the block after ``grace_seconds``, or 5 without a run to stop, it is ended.
    """
    if not is_launched():
        yield
        return
    has_left = threading.Event()
    expected = launcher_of(parent_of())

    def watch() -> None:
        while parent_of() == expected:
            if has_left.wait(_LOOK_SECONDS):
                return
        _say(f"process {expected}, which started this one, is gone: saving and ending")
        if has_left.is_set():
            return
        is_there = request_stop(f"the launcher (process {expected}) is gone", signal.SIGTERM)
        patience = grace_seconds if is_there else min(grace_seconds, _UNBEGUN_SECONDS)
        if not is_there:
            os.kill(os.getpid(), signal.SIGTERM)  # for the main thread, wherever it is
        if not has_left.wait(patience):
            _say(f"not ended within {patience:g} s of the end of its launcher: ended where it stands")
            end(code_of_signal(signal.SIGTERM))

    thread = threading.Thread(target=watch, name="launcher watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_left.set()
        thread.join()


def _say(line: str) -> None:
    """Write ``line`` to standard error in a thread of its own, which is waited for a moment only."""
    text = f"rank {os.environ.get('RANK', '0')}: {line}\n".encode()

    def write() -> None:
        """Write the line, if standard error is still open."""
        with suppress(OSError):  # the reader may have gone with the launcher
            os.write(2, text)

    writing = threading.Thread(target=write, name="launcher watch says", daemon=True)
    writing.start()
    writing.join(_SAY_SECONDS)
