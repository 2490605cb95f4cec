"""A process of several ends when the launcher that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bootstrap.launch import is_launched, launcher_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_SECONDS = 0.5
_UNBEGUN_SECONDS = 5.0  # for a run that has nothing to save yet
_CODE = 128 + signal.SIGTERM


@contextmanager
def ending_with_launcher(
    request_stop: Callable[[str, int], bool],
    grace_seconds: float,
    *,
    parent_of: Callable[[], int] = os.getppid,
    end: Callable[[int], object] = os._exit,
) -> Iterator[None]:
    """Within the block, a process that a launcher started saves and ends once that launcher is gone.

    Nobody else would end it: it would keep the run folder, and wait for peers that may be gone too. ``request_stop`` is
    asked first, as by SIGTERM; it returns whether the run is there to obey. If the process has not left the block when
    ``grace_seconds`` are over, or 5 seconds where there was no run to stop, it is ended where it stands.
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
        is_there = request_stop(f"the launcher (process {expected}) is gone", signal.SIGTERM)
        patience = grace_seconds if is_there else min(grace_seconds, _UNBEGUN_SECONDS)
        if not is_there:
            os.kill(os.getpid(), signal.SIGTERM)  # for the main thread, wherever it is
        if not has_left.wait(patience):
            _say(f"not ended within {patience:g} s of the end of its launcher: ended where it stands")
            end(_CODE)

    thread = threading.Thread(target=watch, name="launcher watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_left.set()
        thread.join()


def _say(line: str) -> None:
    rank = os.environ.get("RANK", "0")
    with suppress(OSError, ValueError):  # whoever read it may be gone with the launcher
        sys.stderr.write(f"rank {rank}: {line}\n")
        sys.stderr.flush()
