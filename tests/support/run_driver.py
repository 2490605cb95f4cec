"""Runs `python -m application` in children of a process that has imported all it needs, as lines of input tell.

The first line is a job to warm up with; each other is a list of jobs that run at the same time. A job is ``arguments``,
``cwd``, ``environment``, and perhaps ``kill_after`` seconds, ``at`` (arguments of ``phases.interrupt_at``), ``watch``
(a folder whose openings are counted), ``then`` (jobs that run while this one, which stops itself, is stopped), ``disk``
(what of its run folder fails: the arguments of ``disk_arm`` in ``failing_disk.c`` behind the folder).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.support.phases import interrupt_at

HEAVY = ("torch", "accelerate", "transformers", "holdfast.bootstrap.adapter_choice.table")
IN_OPEN = 0x20
LONGEST = 50
"""Seconds after which a child is ended, so that one that waits for ever is a failed test."""
PARTING = 5
"""Seconds after which a thread that is there still is one that was left behind."""


def train(job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the exit code of the command of ``job``, and what is left of it in this process."""
    from holdfast.bootstrap.cli import main as cli

    os.chdir(job["cwd"])
    os.environ.update(job.get("environment", {}))
    if job.get("at"):
        interrupt_at(**job["at"])
    if job.get("disk"):  # needs failing_disk.c
        ctypes.CDLL(None).disk_arm(os.fsencode(job["cwd"] + "/runs"), *map(ctypes.c_long, job["disk"]))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    used = time.process_time()
    code = cli.main(job["arguments"])
    seconds = time.monotonic() - started
    let_threads_end()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    left = {"threads": threads, "grown_kib": grown, "seconds": seconds, "cpu_seconds": time.process_time() - used}
    if job.get("disk"):
        left["operations"] = ctypes.CDLL(None).disk_count()
    return code, left | ({"modules": list(sys.modules)} if job.get("tells_modules") else {})


def let_threads_end() -> None:
    """Give threads that were told to end the time for it: on a busy machine they may be on their way still."""
    end = time.monotonic() + PARTING
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0, end - time.monotonic()))


def start(job: dict[str, Any]) -> tuple[int, int]:
    """Start a child that does ``job``; return its number and the pipe on which it tells what it leaves."""
    readable, writable = os.pipe()
    child = os.fork()
    if child:
        os.close(writable)
        return child, readable
    code = 70
    try:
        signal.alarm(LONGEST)
        os.setsid()
        os.close(readable)
        for number, name in ((1, "out.log"), (2, "err.log")):
            os.dup2(os.open(Path(job["cwd"]) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
        code, left = train(job)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writable, json.dumps(left).encode())
    except BaseException:  # noqa: BLE001  a child must never return into its parent's code
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end(job: dict[str, Any], child: int, readable: int) -> dict[str, Any]:
    """Return how a child ended and what it left."""
    if "kill_after" in job:
        time.sleep(job["kill_after"])
        os.kill(child, signal.SIGKILL)
    others = []
    if "then" in job:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        others = do(job["then"])
        os.kill(child, signal.SIGCONT)
    with os.fdopen(readable, "rb") as pipe:
        told = json.loads(pipe.read() or b"{}")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    orphans = True
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        orphans = False
    return {"code": code, "orphans": orphans, "then": others, **told}


def do(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how the children of ``jobs`` ended; a file ``ended`` is made where the first one ran once it has."""
    libc, watching = ctypes.CDLL(None), -1
    if "watch" in jobs[0]:
        watching = libc.inotify_init1(os.O_NONBLOCK)
        for folder in [jobs[0]["watch"], *(path for path in Path(jobs[0]["watch"]).rglob("*") if path.is_dir())]:
            assert libc.inotify_add_watch(watching, os.fsencode(folder), IN_OPEN) >= 0
    started = [(job, *start(job)) for job in jobs]
    if len(jobs) > 1:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        Path(jobs[0]["cwd"], "ended").touch()
    results = [end(*one) for one in started]
    if watching >= 0:
        try:
            results[0]["opened"] = len(os.read(watching, 1 << 16))
        except BlockingIOError:
            results[0]["opened"] = 0
        os.close(watching)
    return results


def warm_up(job: dict[str, Any]) -> None:
    """Import whatever a run imports, so that its children need not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in HEAVY:
            importlib.import_module(name)
        (result,) = do([job | {"tells_modules": True}])
        assert result["code"] == 0, Path(job["cwd"], "err.log").read_text()
        for name in result["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads must not fork"
    gc.freeze()


if __name__ == "__main__":
    for line_number, line in enumerate(sys.stdin):
        answer = do(json.loads(line)) if line_number else warm_up(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
