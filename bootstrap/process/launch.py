"""Starts the processes of a run on this machine, if no launcher has started them."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.bootstrap.adapter_choice.launch_environment import refuse_strangers
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_child, code_of_signal, ending_of
from holdfast.bootstrap.process.signals import keeping_handlers, stopping_signals
from holdfast.configs.sections.distributed import AutoDistributedSettings
from holdfast.domain.fault_tolerance.restart_policy import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.configs.settings import TrainSettings

RUN_ID = "holdfast.launcher."
"""The beginning of the run's id that a rank gets from our launchers; their process ID follows."""
_SECOND_GPU = Path("/dev/nvidia1")


def launcher_of(parent: int, environment: Mapping[str, str] = os.environ) -> int:
    """Return the process ID of the launcher of this process, whose parent is now ``parent``; it may have ended.

    ``launch`` passes its process ID in the run's id; any other launcher is the parent.
    """
    own = own_launcher(environment)
    return parent if own is None else own


def own_launcher(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the process ID of the command that started this process as one rank of a run; None for other launchers."""
    match = re.fullmatch(re.escape(RUN_ID) + r"(\d+)", environment.get("TORCHELASTIC_RUN_ID", ""))
    return int(match[1]) if match else None


def processes_to_start(settings: TrainSettings) -> int:
    """Return the number of processes that this command starts; 1 if it trains itself.

    Raises ``ConfigurationError`` if it was started several times, as processes that do not know each other.
    """
    distributed = settings.distributed
    if not isinstance(distributed, AutoDistributedSettings):
        return 1
    refuse_strangers()
    if is_launched():
        return 1
    if distributed.processes != "auto":
        return distributed.processes
    if settings.optimizer.device not in ("auto", "cuda") or not _SECOND_GPU.exists():
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def launch_until_memory_fits(
    arguments: Sequence[str],
    num_processes: int,
    record: Path,
    report: Callable[[str], object],
    *,
    module: str = "holdfast",
    grace_seconds: float = 30.0,
) -> int:
    """Repeat ``launch`` while its processes run out of memory and write a smaller size to the file ``record``.

    Returns the exit code, which may be that of a process that failed because another ran out of memory.
    """
    while True:
        before = _rows(record)
        code = launch(arguments, num_processes, module=module, grace_seconds=grace_seconds)
        if ending_of(code) is Ending.FINAL or _rows(record) >= before:
            return code
        report("starting all processes again, in smaller micro-batches")


def _rows(record: Path) -> float:
    """Return the number of rows known to fit, infinite if none is known."""
    try:
        content = parse_json(read_regular(record))
        return int(content["rows"]) if content["shortages"] else math.inf
    except (OSError, ValueError, KeyError, TypeError):
        return math.inf


def launch(
    arguments: Sequence[str], num_processes: int, *, module: str = "holdfast", grace_seconds: float = 30.0
) -> int:
    """Run ``module`` with ``arguments`` in ``num_processes`` processes through torchrun; return the exit code.

    A signal is passed on to the processes, which then have ``grace_seconds`` to end.
    """
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    share_processors(num_processes)
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(grace_seconds))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=f"{RUN_ID}{os.getpid()}",
        max_restarts=0,
        monitor_interval=0.2,
        signals_to_handle=names_passed_on(),
    )
    with stopping_after(math.ceil(grace_seconds)):
        return code_of_processes(lambda: elastic_launch(config, sys.executable)("-m", module, *arguments))


@contextmanager
def stopping_after(seconds: int) -> Iterator[None]:
    """Within the block, processes that torchrun stops have ``seconds`` to end.

    Whatever it is asked for, torch 2.11 gives them 30 seconds, and torch 2.13 still does so if one of them has failed.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    original = PContext.close

    def close(processes: PContext, death_sig: signal.Signals | None = None, timeout: int = 0) -> None:  # noqa: ARG001
        original(processes, death_sig, seconds)

    setattr(PContext, "close", close)  # noqa: B010  mypy forbids the assignment of a method
    try:
        yield
    finally:
        setattr(PContext, "close", original)  # noqa: B010


def share_processors(num_processes: int) -> None:
    """Give each of ``num_processes`` on this machine its share of the processors for threads, unless a user did."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // num_processes)))


def names_passed_on() -> str:
    """Return the names of the signals that torchrun passes on to its processes, with commas between them."""
    return ",".join(number.name for number in _passed_on())


def _passed_on() -> tuple[signal.Signals, ...]:
    return (*stopping_signals(), signal.SIGQUIT)


def code_of_processes(start: Callable[[], object]) -> int:
    """Return the exit code of the processes that ``start`` starts by torchrun and awaits.

    It is that of the process that failed first; of a signal that torchrun passed on, that of the signal.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # each process reports its own error
    try:
        with keeping_handlers(_passed_on()):  # torchrun replaces them, and this program may go on
            start()
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values() if failure.exitcode]
        # codes above 1 are more specific than the 1 of the processes that failed after it
        specific = [code for code in codes if code > 1]
        return next((code_of_child(code) for code in (*specific, *codes)), ExitCode.FAILED)
    except SignalException as stop:
        return code_of_signal(int(stop.sigval))
    return ExitCode.FINISHED


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
