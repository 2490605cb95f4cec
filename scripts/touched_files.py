"""Lists the files of Holdfast with a function that runs: ``python scripts/touched_files.py step|stop|all train ...``.

``step`` traces the 20th step of a run, ``stop`` sends SIGTERM there and traces until the exit, ``all`` a whole command.
The files come on standard error, in the order in which they are reached, with the threads that reach them.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from holdfast.application.training.loop import TrainRun  # noqa: E402
from holdfast.bootstrap.cli.main import main  # noqa: E402

if TYPE_CHECKING:
    from types import FrameType

STEP = 20
FOLDERS = ("adapters", "application", "bootstrap", "configs", "domain", "ports")
_ADVANCE = TrainRun._advance.__code__  # noqa: SLF001
_steps = count(1)
_threads: dict[str, set[str]] = {}


def called(frame: FrameType, event: str, _: object) -> None:
    """Record the file of a function that is called."""
    if event != "call" or frame.f_code.co_name == "<module>":
        return
    if frame.f_code is _ADVANCE and sys.argv[1] != "all":
        _advance(next(_steps))
    name = os.path.realpath(frame.f_code.co_filename).removeprefix(f"{ROOT}/")
    if name.startswith(FOLDERS):
        _threads.setdefault(name, set()).add(threading.current_thread().name)


def _advance(step: int) -> None:
    if step == STEP:
        _threads.clear()
        if sys.argv[1] == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
    elif step == STEP + 1 and sys.argv[1] == "step":
        atexit.unregister(show)
        show()


def show() -> None:
    """Print the files."""
    lines = [f"{name}  ({', '.join(sorted(threads))})" for name, threads in _threads.items()]
    sys.stderr.write("\n".join([*lines, f"{len(lines)} files\n"]))


if __name__ == "__main__":
    atexit.register(show)
    threading.setprofile(called)
    sys.setprofile(called)
    code = main(sys.argv[2:])
    sys.setprofile(None)
    sys.exit(code)
