"""A job on several machines, and the words of the command that each machine runs."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PORT = 29500
MARGIN_SECONDS = 10
"""Seconds after the grace period of a run until a scheduler may end its processes by force."""
_LAUNCHER = ("python", "-m", "holdfast.torchrun")
_PROGRAM = ("-m", "holdfast")


@final
class ExpandedWord(str):
    """A word in which a shell or Kubernetes puts variables, such as ``"$head:29500"``; it is written as it is."""

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class Volume:
    """The volume ``name`` of a scheduler, which each machine of a job mounts at ``path``."""

    name: str
    path: str


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """The share of a job that one machine has, without GPUs if ``gpus`` is 0.

    ``cpus`` is None if none are asked for, ``image`` and ``accelerator`` (a type of GPU) are None if none is named.
    """

    gpus: int
    processes: int
    cpus: int | None = None
    image: str | None = None
    accelerator: str | None = None
    volumes: tuple[Volume, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class RayWorkers:
    """The workers of a run on Ray: the least number, and the processors that each reserves."""

    least: int
    cpus: int = 1


@final
@dataclass(frozen=True, slots=True)
class Program:
    """The ``command`` ``train`` or ``prepare``, with ``settings``, each ``key.path=value``.

    ``variables`` are the environment variables with the secrets that the settings name or leave out. With
    ``starts_processes`` the command itself starts the processes of its machine.
    """

    command: str
    settings: tuple[str, ...]
    variables: tuple[str, ...] = ()
    starts_processes: bool = True


@final
@dataclass(frozen=True, slots=True)
class Job:
    """A run on ``num_machines``, or the preparation of its data in as many parts, as a scheduler is to start it.

    The run ends at most ``grace_seconds`` after a signal. After a crash it is started at most ``max_restarts`` times
    again; by a scheduler that does not look at exit codes ``crash_loop`` times, as it repeats mistakes too. ``workers``
    are those on Ray, where a run of None has no fewer than it has processes.
    """

    name: str
    num_machines: int
    machine: Machine
    program: Program
    grace_seconds: int = 30
    max_restarts: int = 100
    crash_loop: int = 5
    workers: RayWorkers | None = None

    @property
    def num_processes(self) -> int:
        """Return the number of processes of all machines."""
        return self.num_machines * self.machine.processes

    @property
    def ray_workers(self) -> RayWorkers:
        """Return the workers of the run on Ray."""
        return self.workers or RayWorkers(self.num_processes)

    @property
    def is_preparation(self) -> bool:
        """Return whether the job prepares data, in parts that know nothing of each other."""
        return self.program.command == "prepare"

    @property
    def needs_meeting(self) -> bool:
        """Return whether processes of several machines must find each other."""
        return self.num_machines > 1 and not self.is_preparation


def command_words(job: Job, *, endpoint: str = "", meeting: str = "", part: str = "") -> list[str]:
    """Return the words of the command of one machine.

    The machines of a run meet at ``endpoint`` (``HOST:PORT``) under the name ``meeting``. Of a preparation in parts a
    machine makes ``part``, written ``I/N``. A word of the command is an ``ExpandedWord`` if its argument is one.
    """
    program = [*_PROGRAM, job.program.command]
    settings, processes = [*job.program.settings], job.machine.processes
    if job.is_preparation:
        return ["python", *program, *(["--part", part] if job.num_machines > 1 else []), *settings]
    if job.num_machines == 1 and (processes == 1 or job.program.starts_processes):
        number = [f"distributed.processes={processes}"] if job.program.starts_processes else []
        return ["python", *program, *settings, *number]
    where = ["--standalone"]
    if job.num_machines > 1:
        where = ["--nnodes", str(job.num_machines), "--rdzv-backend", "c10d", "--rdzv-id", meeting]
        where += ["--rdzv-endpoint", endpoint, "--rdzv-conf", "read_timeout=600"]  # for machines that begin later
    each = ["--nproc-per-node", str(processes), "--shutdown-timeout", str(job.grace_seconds)]
    return [*_LAUNCHER, *where, *each, *program, *settings]


def ray_words(job: Job) -> list[str]:
    """Return the words of the command that runs the job on a Ray cluster, a run with a worker for each process."""
    words = ["python", *_PROGRAM, job.program.command, "--on", "ray", *job.program.settings]
    if job.is_preparation:
        return words
    workers = job.ray_workers
    return [
        *words,
        f"distributed.workers=[{workers.least}, {job.num_processes}]",
        *([f"distributed.cpus_per_worker={workers.cpus}"] if workers.cpus > 1 else []),
        f"distributed.gpus_per_worker={int(job.machine.gpus > 0)}",
    ]


def shell_command(words: Sequence[str], *, before: str = "") -> str:
    """Return ``words``, after the text ``before``, as one command of a shell with each setting on its own line."""
    lines = [" ".join(map(_quoted, line)) for line in _lines_of(words)]
    return before + " \\\n  ".join(lines)


def _lines_of(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of each line: the launcher, its options, the command of Holdfast, and each setting."""
    is_launched, line = tuple(words[:3]) == _LAUNCHER, list[str]()
    for number, word in enumerate(words):
        begins_program = is_launched and word == "-m" and number > 1
        if line and (begins_program or word in {"--rdzv-backend", "--nproc-per-node"} or _is_setting(word)):
            yield line
            line = []
        line.append(word)
    yield line


def _is_setting(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and "." in name and not name.startswith("-")


def _quoted(word: str) -> str:
    return str(word) if isinstance(word, ExpandedWord) else shlex.quote(word)
