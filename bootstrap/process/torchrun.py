"""torchrun, with the signals that Holdfast knows and the exit code of the process that failed first."""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from holdfast.bootstrap.process.exit_codes import ExitCode, end_with, guarded
from holdfast.bootstrap.process.launch import code_of_processes, names_passed_on, share_processors, stopping_after
from holdfast.domain.errors import RestartNeeded

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterator, Sequence

_LONGEST_WAIT_SECONDS = 600.0
_BARRIER_SECONDS = 300.0  # that torchrun waits for other machines once its own processes have ended well
_JOIN_SECONDS = 600.0  # torchrun's own limit for machines to find each other
_SPARE_SECONDS = 30.0
_STOP_SECONDS = 30  # torchrun's own time limit for processes that it stops
_UNSEEN_SECONDS = 60.0


def torchrun(arguments: Sequence[str]) -> int:
    """Run torchrun with its own ``arguments``; return the exit code.

    torchrun itself ends with 1, whatever the code of its processes, and a SIGUSR1 ends it at once. Schedulers restart
    a job by its exit code, and Slurm announces a time limit by SIGUSR1. The name of a pod of Kubernetes is known some
    time after its start only, so the name of the endpoint is awaited; torchrun itself looks for it once. Raises
    ``RestartNeeded`` if the machines do not find, or lose, each other.
    """
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import determine_local_world_size, run

    options = torchrun_parser().parse_args([*arguments])
    if options.rdzv_endpoint:
        await_name(options.rdzv_endpoint.rpartition(":")[0] or options.rdzv_endpoint)
    share_processors(determine_local_world_size(options.nproc_per_node))
    start: Any = run
    longest = max(_BARRIER_SECONDS, _join_seconds(options.rdzv_conf)) + _SPARE_SECONDS
    try:
        with ending_without_processes(longest), stopping_after(options.shutdown_timeout):
            return code_of_processes(lambda: start(options))
    except RendezvousError as error:
        cause = " ".join(str(error).split())
        msg = f"this machine lost the others, or did not find them at {options.rdzv_endpoint}: {cause}"
        raise RestartNeeded(msg) from error


def torchrun_parser() -> ArgumentParser:
    """Return the parser of torchrun's arguments, with those that torch 2.11 lacks and the defaults of Holdfast."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    if "shutdown_timeout" not in {action.dest for action in parser._actions}:  # noqa: SLF001  argparse has no other way
        parser.add_argument("--shutdown-timeout", "--shutdown_timeout", type=int)
    seconds = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _STOP_SECONDS)
    ours = {"signals_to_handle": names_passed_on(), "shutdown_timeout": seconds}
    parser.set_defaults(**{name: os.environ.get(f"PET_{name.upper()}", value) for name, value in ours.items()})
    return parser


@contextmanager
def ending_without_processes(
    seconds: float,
    *,
    states: Callable[[], Sequence[str]] = lambda: [child.status() for child in psutil.Process().children()],
    end: Callable[[int], object] = os._exit,
    look_seconds: float = 1.0,
) -> Iterator[None]:
    """Within the block, end this program once the processes that it started have been gone for ``seconds``.

    torchrun then asks the machine that leads the others, without a time limit: for ever if the network is cut. The exit
    code asks for another start. ``states`` returns the states of the processes, in the words of psutil. If torchrun,
    which looks at them several times a second, does not notice for a minute that one has ended, that is enough. ``end``
    ends the program.
    """
    has_left = threading.Event()

    def watch() -> None:
        gone_since = math.inf
        while not has_left.wait(look_seconds):
            found = set(states())
            gone_since = math.inf if found - {psutil.STATUS_ZOMBIE} else min(gone_since, time.monotonic())
            if time.monotonic() - gone_since > (min(seconds, _UNSEEN_SECONDS) if found else seconds):
                sys.stderr.write("error: this machine lost the others: its processes have ended, and torchrun waits\n")
                sys.stderr.flush()
                end(ExitCode.RESTART_NEEDED)
                return

    thread = threading.Thread(target=watch, name="processes watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_left.set()
        thread.join()


def _join_seconds(configuration: str) -> float:
    """Return the time limit for machines to find each other, in the words of ``--rdzv-conf``."""
    match = re.search(r"(?:^|,)join_timeout=(\d+)", configuration)
    return float(match[1]) if match else _JOIN_SECONDS


def await_name(
    host: str, *, look_up: Callable[[str, None], object] = socket.getaddrinfo, seconds: float = _LONGEST_WAIT_SECONDS
) -> bool:
    """Wait at most ``seconds`` until ``host`` is the name or address of a machine; return whether it is."""
    end = time.monotonic() + seconds
    while True:
        try:
            look_up(host, None)
        except socket.gaierror:
            if time.monotonic() >= end:
                return False
            time.sleep(min(1.0, seconds))
        else:
            return True


def main() -> NoReturn:
    """Run ``torchrun`` as a program of its own, with the arguments of the command line."""
    end_with(lambda: guarded(lambda: torchrun(sys.argv[1:])))
