"""Ends a process of a launched run when its launcher has ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from holdfast.bootstrap.process.exit_codes import code_of_signal
from holdfast.bootstrap.process.launch import launcher_of, own_launcher
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
    """Within the block, save and end a process that a launcher started, once the launcher has ended.

    Nothing else would end it. ``request_stop`` is called first, as by SIGTERM; it returns whether there is a run to
    stop. ``end`` ends the process if it is still in the block after ``grace_seconds``, or 5 seconds without a run.
    """
    if not is_launched() and own_launcher() is None:
        yield
        return
    has_left, expected = threading.Event(), launcher_of(parent_of())

    def watch() -> None:
        while parent_of() == expected:
            if has_left.wait(_LOOK_SECONDS):
                return
        _report(f"process {expected}, which started this process, has ended: saving and ending")
        if has_left.is_set():
            return
        is_there = request_stop(f"the launcher (process {expected}) is gone", signal.SIGTERM)
        patience = grace_seconds if is_there else min(grace_seconds, _UNBEGUN_SECONDS)
        if not is_there:
            os.kill(os.getpid(), signal.SIGTERM)  # for the main thread, wherever it is
        if not has_left.wait(patience):
            _report(f"still running {patience:g} s after the end of its launcher: ending without another save")
            end(code_of_signal(signal.SIGTERM))

    thread = threading.Thread(target=watch, name="launcher watch", daemon=True)
    try:
        thread.start()  # it may end this block by a signal at once
        yield
    finally:
        has_left.set()
        if thread.is_alive():
            thread.join()


def end_with_parent(parent: int) -> None:
    """From now on, end this process within a second once the process ``parent``, which started it, has ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os._exit(code_of_signal(signal.SIGTERM))

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def stop_with_parent(parent: int) -> None:
    """From now on, send SIGTERM to this process within a second once the process ``parent`` has ended.

    So a trial saves and ends if its study is killed.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="study watch", daemon=True).start()


def stop_with_study(study: int | None) -> None:
    """Let this process stop with the process ``study``, if it trains a trial; ranks end with their launcher."""
    if study is not None and not is_launched():
        stop_with_parent(study)


def _report(line: str) -> None:
    """Write ``line`` to standard error in a separate thread, and wait only a moment for it."""
    text = f"rank {os.environ.get('RANK', '0')}: {line}\n".encode()

    def write() -> None:
        """Write the line, if standard error is still open."""
        with suppress(OSError):  # the reader may have gone with the launcher
            os.write(2, text)

    writing = threading.Thread(target=write, name="launcher watch says", daemon=True)
    writing.start()
    writing.join(_SAY_SECONDS)
