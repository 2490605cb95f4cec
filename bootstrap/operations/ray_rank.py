"""One rank of a run on Ray: the process that a worker of Ray starts, and passes signals to."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from holdfast.bootstrap.operations.rank_coordinator import RemoteCoordinator
from holdfast.bootstrap.process.exit_codes import ExitCode, cause_of, code_of_child
from holdfast.bootstrap.process.launch import RUN_ID
from holdfast.bootstrap.run_folder.run_lock import is_locked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.bootstrap.operations.rank_coordinator import Coordinator

_POLL_SECONDS = 0.2
_ASK_SECONDS = 0.5
_PARTING_SECONDS = 5.0  # in which the other ranks say how they ended, as the first one may have ended because of them
# Ray kills the session and the children of a worker that it ends. The shell is such a child, and a rank, which is none,
# notices that its launcher has gone, and saves.
_KEEPER = f'TORCHELASTIC_RUN_ID={RUN_ID}$$ "$@"; exit $?'
# Ray blocks SIGINT in its processes, and whoever started Ray may ignore signals; a child inherits both.
_FRESH_SIGNALS = """\
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class RankCommand:
    """The command of each rank, in ``folder``, which lies at the same path on all machines.

    ``run_folder`` is that of the run, which the ranks of an earlier start may hold for ``grace_seconds``.
    """

    command: Sequence[str]
    folder: str
    run_folder: str
    grace_seconds: float


def run_rank(config: Mapping[str, Any]) -> None:
    """Run one rank to its end on a worker of Ray. ``config`` has a ``coordinator`` and the fields of ``RankCommand``.

    Raises ``RuntimeError`` if another start may continue the run, so that Ray starts all ranks again.
    """
    ray: Any = import_module("ray")
    broadcast = import_module("ray.train.collective").broadcast_from_rank_zero
    fields = {**config}
    actor, context = fields.pop("coordinator"), import_module("ray.train").get_context()
    command, rank = RankCommand(**fields), context.get_world_rank()
    if rank == 0:  # the ranks of an earlier start may still be saving
        wait_until_free(command.run_folder, command.grace_seconds)
    *address, start = broadcast([_own_address(), _free_port(), uuid.uuid4().hex] if rank == 0 else None)
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
    coordinator = RemoteCoordinator(ray, actor)
    if coordinator.begin(start, rank, context.get_world_size()):
        environment = {**os.environ, **environment_of(context, address, gpus)}
        end_rank(coordinator, start, rank, follow_rank(start_rank(command, environment), coordinator))


def start_rank(command: RankCommand, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a rank; return its keeper."""
    return subprocess.Popen(  # noqa: S603  the command of this run
        ["/bin/sh", "-c", _KEEPER, "sh", *with_fresh_signals(command.command)],
        cwd=command.folder,
        env=environment,
        start_new_session=True,
    )


def with_fresh_signals(command: Sequence[str]) -> Sequence[str]:
    """Return the words of ``command`` so that it neither blocks nor ignores the signals that stop a run."""
    return [sys.executable, "-I", "-S", "-c", _FRESH_SIGNALS, *command]


def follow_rank(process: subprocess.Popen[bytes], coordinator: Coordinator) -> int:
    """Pass the signals of the run to the rank whose keeper is ``process`` until it ends; return its exit code."""
    delivered = 0
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return code_of_child(process.wait(timeout=_ASK_SECONDS))
            for number in coordinator.signals()[delivered:]:
                delivered += _deliver(process, number)
    finally:
        if process.poll() is None:
            process.terminate()  # the rank saves and ends


def end_rank(
    coordinator: Coordinator,
    start: str,
    rank: int,
    code: int,
    *,
    seconds: float = _PARTING_SECONDS,
    poll: float = _POLL_SECONDS,
) -> None:
    """Tell the coordinator that ``rank`` has ended with ``code``.

    Raises ``RuntimeError`` if it did not finish, and no rank decides the end of the run within ``seconds``.
    """
    coordinator.end(start, rank, code)
    until = time.monotonic() + seconds
    while code != ExitCode.FINISHED and not coordinator.has_ended(start) and time.monotonic() < until:
        time.sleep(poll)
    if code != ExitCode.FINISHED and coordinator.status().decided is None:
        coordinator.fail(start)
        msg = f"rank {rank} {cause_of(code)}"
        raise RuntimeError(msg)


def environment_of(
    context: Any, address: Sequence[Any], gpus: Sequence[Any] = (), environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables by which a rank finds the others, as torchrun sets them; ``context`` is Ray's.

    ``LOCAL_RANK`` is the place of the worker's GPU, the first of ``gpus``, among those that ``environment`` shows to
    all workers of the machine.
    """
    host, port = address
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    own = str(gpus[0]) if gpus else None
    return {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(visible.index(own) if own in visible else context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": str(host),
        "MASTER_PORT": str(port),
    }


def wait_until_free(run_folder: str | Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Return once no process holds ``run_folder``, or after ``seconds``."""
    until = clock() + seconds
    while is_locked(Path(run_folder)) and clock() < until:
        time.sleep(_POLL_SECONDS)


def _deliver(keeper: subprocess.Popen[bytes], number: int) -> bool:
    """Send the signal ``number`` to the rank of ``keeper``; return False if it has none yet."""
    with suppress(psutil.Error):
        for child in psutil.Process(keeper.pid).children():
            child.send_signal(signal.Signals(number))
            return True
    return False


def _own_address() -> str:
    address: str = import_module("ray").util.get_node_ip_address()
    return address


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port
