"""A job on several machines, and the words of the command that each machine runs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.operations.repeat_command import with_defaults
from holdfast.bootstrap.run_folder.record_file import flatten
from holdfast.configs.plain import to_plain
from holdfast.configs.rendering import dump_settings
from holdfast.configs.run_names import names_itself
from holdfast.configs.secret_masking import MASK
from holdfast.configs.settings_layers import DELIMITER, PREFIX, load_settings
from holdfast.configs.strict_yaml import write_yaml
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.configs.settings import TrainSettings

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


_NAMED = re.compile(r"env:([A-Za-z_]\w*)")
_READ_BY_LIBRARIES = {
    "s3://": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"),
    "hf://": ("HF_TOKEN",),
    '"huggingface"': ("HF_TOKEN",),
    '"model.path"': ("HF_TOKEN",),
    '"wandb"': ("WANDB_API_KEY",),
}
"""Variables that libraries read for settings whose JSON has such a text."""


@final
@dataclass(frozen=True, slots=True)
class JobSettings:
    """The ``words`` that set what differs from the defaults, and the names of the ``variables`` with the secrets."""

    words: tuple[str, ...]
    variables: tuple[str, ...]


def job_settings(settings: TrainSettings, environ: Mapping[str, str]) -> JobSettings:
    """Return ``settings`` for a command on another machine.

    A setting with a secret is left to the environment variable of its name. Other variables are those that settings
    name as ``env:NAME``, and those of libraries that are set in ``environ``. Raises ``ConfigurationError`` if words and
    variables do not give the same settings again.
    """
    recorded, plain = dump_settings(settings), flatten(to_plain(settings))
    changed = {each.name: each.value for each in with_defaults(recorded) if each.is_changed}
    secret = {_variable_of(name): write_yaml(plain[name]) for name, value in changed.items() if _is_masked(value)}
    words = [f"{name}={write_yaml(value)}" for name, value in changed.items() if not _is_masked(value)]
    if "run.name" not in changed and names_itself(settings):
        words.insert(0, f"run.name={settings.run.name}")  # else the other machine would choose a name
    again = flatten(dump_settings(load_settings([], words, secret).settings))
    if others := [name for name, value in flatten(recorded).items() if again.get(name) != value]:
        msg = f"a job file cannot set {others[0]} as it is set here: keep secrets out of it, in variables of libraries"
        raise ConfigurationError(msg)
    variables = [*secret, *_named(changed), *_of_libraries(json.dumps(changed), environ)]
    return JobSettings(tuple(words), tuple(dict.fromkeys(variables)))


def _is_masked(value: object) -> bool:
    return MASK in json.dumps(value)


def _variable_of(name: str) -> str:
    return PREFIX + name.replace(".", DELIMITER).upper()


def _named(value: Any) -> Iterator[str]:
    """Yield the names of variables that settings name as ``env:NAME``."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    elif isinstance(value, str) and (named := _NAMED.fullmatch(value)):
        yield named[1]


def _of_libraries(changed: str, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the variables in ``environ`` that libraries read for the ``changed`` settings, given as JSON."""
    wanted = (name for text, names in _READ_BY_LIBRARIES.items() if text in changed for name in names)
    return [name for name in wanted if environ.get(name)]
