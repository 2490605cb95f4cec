"""The command ``launch``: prints the job file that starts this configuration on several machines."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, whole
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.job_files.job import Job, Machine, Volume
    from holdfast.bootstrap.job_files.render_job import Kind
    from holdfast.configs.settings import TrainSettings

_HELP = """\
Takes the settings of `train`, checks them as `train` does, and prints the file with which a scheduler starts the run:

  slurm       a script for sbatch: saves ahead of the time limit, and queues itself again
  kubernetes  an indexed Job, with a Service by which its pods find each other
  ray         a RayJob of KubeRay
  skypilot    a task for sky jobs launch, which replaces machines that are taken away
  torchrun    a command for each machine, without a scheduler

All settings are in the file, those of --config files and of the environment too. Secrets are not: the command says
which environment variables must hold them. All machines need the same run folder, and see the data by the same path.

--command prepare makes a job of N parts that tokenizes the data, one part on each of the N machines.

Slurm: further options, such as the partition and the time limit, are options of sbatch (sbatch --partition=gpu FILE),
or variables such as SBATCH_PARTITION and SBATCH_TIMELIMIT.

examples:
  python -m application launch slurm --nodes 4 --config run.yaml run.dir=/shared/runs/mine > job.sh
  python -m application launch slurm --nodes 4 --submit --config run.yaml run.dir=/shared/runs/mine
  python -m application launch kubernetes --nodes 4 --image your/holdfast --volume shared:/shared \\
      --config run.yaml run.dir=/shared/runs/mine --output job.yaml
  python -m application launch skypilot --gpus 1 --accelerator L40S state_store.archive.url=s3://bucket/runs
  python -m application launch slurm --command prepare --nodes 32 --config run.yaml run.cache_dir=/shared/cache
"""
_GPUS = 8
_NUMBER = "distributed.processes="  # the machine of the job has it
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 45  # a pod's name adds a number and five characters, and the whole is a label of 63


def add_launch(commands: Commands) -> None:
    """Add ``launch`` to ``commands``."""
    summary = "print the job file for a scheduler or launcher of several machines"
    parser = add_command(commands, "launch", summary, _HELP, launch)
    kinds = ("slurm", "kubernetes", "ray", "skypilot", "torchrun")
    parser.add_argument("kind", choices=kinds, help="the scheduler or launcher")
    add_settings(parser)
    text = "train the model, or prepare its data in parts; default: train"
    parser.add_argument("--command", dest="work", choices=("train", "prepare"), default="train", help=text)
    parser.add_argument("--nodes", type=whole(1), default=1, metavar="N", help="number of machines; default: 1")
    text = f"GPUs of each machine; default: {_GPUS}, or 0 for prepare and with optimizer.device=cpu"
    parser.add_argument("--gpus", type=whole(0), metavar="N", help=text)
    text = "processes of each machine; default: distributed.processes, or one per GPU"
    parser.add_argument("--processes", type=whole(1), metavar="N", help=text)
    text = "processors of each machine; default: 8 per process for slurm, and else what there is"
    parser.add_argument("--cpus", type=whole(1), metavar="N", help=text)
    parser.add_argument("--image", metavar="IMAGE", help="container image in which Holdfast is installed")
    text = "a persistent volume claim, or a volume of SkyPilot, that each machine mounts at PATH; may be repeated"
    parser.add_argument("--volume", type=_volume, action="append", default=[], metavar="NAME:PATH", help=text)
    text = "type of the GPUs, for skypilot; default: H100"
    parser.add_argument("--accelerator", metavar="TYPE", help=text)
    parser.add_argument("--name", help="name of the job; default: that of the run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the file there, and print nothing")
    parser.add_argument("--submit", action="store_true", help="hand the file to sbatch, kubectl or sky")


def launch(options: argparse.Namespace) -> int:
    """Print, write or submit the job file for the settings; return the exit code."""
    from holdfast.adapters.shared.files.file_operations import explain
    from holdfast.bootstrap.job_files.render_job import KINDS
    from holdfast.bootstrap.job_files.submit_job import client_of, notes_on_folders, submit
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.run import build
    from holdfast.configs.settings_layers import load_settings

    resolved = load_settings(options.config, options.settings, os.environ)
    build(resolved.settings)  # refuses what train would refuse
    kind = KINDS[options.kind]
    job = _job(options, kind, resolved.settings)
    client = client_of(options.kind, job.program.variables) if options.submit else ()
    text = kind.render(job)
    print_notes(resolved.notes, sys.stderr)
    print_notes([*notes_on_folders(job, resolved.settings, has_own_disks=kind.has_own_disks)], sys.stderr)
    if names := job.program.variables:
        print_notes([f"the job reads {', '.join(names)} from its environment: {kind.secrets(job)}"], sys.stderr)
    if options.output is not None:
        try:
            options.output.write_text(text, encoding="utf-8")
        except OSError as error:
            msg = f"--output {options.output} cannot be written, {explain(error)}"
            raise ConfigurationError(msg) from error
    if options.submit:
        submit(client, text, kind.suffix)
    elif options.output is None:
        print(text, end="")
    return ExitCode.FINISHED


def _job(options: argparse.Namespace, kind: Kind, settings: TrainSettings) -> Job:
    """Return the job of the options. Raises ``ConfigurationError`` for options that do not go together."""
    from holdfast.bootstrap.job_files.job import Job, Program, job_settings
    from holdfast.bootstrap.job_files.render_job import refuse_number
    from holdfast.bootstrap.job_files.submit_job import SETTINGS, refuse_ray, workers_of
    from holdfast.configs.sections.distributed import AutoDistributedSettings

    machine, job = _machine(options, kind, settings), job_settings(settings, os.environ)
    workers = None
    if options.work == "train":
        refuse_number(settings, options.nodes * machine.processes)
        if options.kind == "ray":
            workers = workers_of(settings.distributed, options.nodes, machine)
            for number in range(workers.least, options.nodes * machine.processes):
                refuse_number(settings, number)
        else:
            refuse_ray(settings.distributed, options.kind)
    is_auto = isinstance(settings.distributed, AutoDistributedSettings)
    words = tuple(word for word in job.words if not word.startswith((_NUMBER, *SETTINGS) if workers else _NUMBER))
    program = Program(options.work, words, job.variables, starts_processes=is_auto)
    return Job(
        name=_name(options.name, settings),
        num_machines=options.nodes,
        machine=machine,
        program=program,
        grace_seconds=math.ceil(settings.recovery.grace_seconds),
        max_restarts=settings.recovery.supervisor.max_restarts,
        crash_loop=settings.recovery.supervisor.crash_loop,
        workers=workers,
    )


def _machine(options: argparse.Namespace, kind: Kind, settings: TrainSettings) -> Machine:
    """Return the machine of the options. Raises ``ConfigurationError`` for options that the kind does not have."""
    from holdfast.bootstrap.job_files.job import Machine
    from holdfast.configs.sections.distributed import AutoDistributedSettings

    if options.image is not None and not kind.takes_image:
        msg = f"--image does not apply to launch {options.kind}, whose machines have Holdfast installed: leave it out"
        raise ConfigurationError(msg)
    if options.image is None and kind.needs_image:
        msg = f"launch {options.kind} needs --image, a container image in which Holdfast is installed"
        raise ConfigurationError(msg)
    if options.volume and not kind.has_own_disks:
        msg = f"--volume does not apply to launch {options.kind}, whose machines mount their own folders: leave it out"
        raise ConfigurationError(msg)
    if options.accelerator is not None and options.kind != "skypilot":
        msg = (
            f"--accelerator does not apply to launch {options.kind}, which takes the GPUs that there are: leave it out"
        )
        raise ConfigurationError(msg)
    needs_none = options.work == "prepare" or settings.optimizer.device == "cpu"
    gpus = options.gpus if options.gpus is not None else 0 if needs_none else _GPUS
    distributed = settings.distributed
    chosen = distributed.processes if isinstance(distributed, AutoDistributedSettings) else "auto"
    usual = max(1, gpus) if chosen == "auto" else chosen
    processes = options.processes or (1 if options.work == "prepare" else usual)
    accelerator = (options.accelerator or "H100") if gpus else None
    return Machine(gpus, processes, options.cpus, options.image, accelerator, tuple(options.volume))


def _name(name: str | None, settings: TrainSettings) -> str:
    """Return ``name``, or a name for the job made of that of the run.

    Raises ``ConfigurationError`` if Kubernetes would refuse ``name``.
    """
    if name is None:
        words = re.sub(r"[^a-z0-9]+", "-", settings.run.shown_name.lower()).strip("-")
        return f"holdfast-{words}"[:_LONGEST_NAME].strip("-")
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        msg = (
            f"--name {name} must begin with a letter, consist of small letters, digits and -, and have at most "
            f"{_LONGEST_NAME} characters"
        )
        raise ConfigurationError(msg)
    return name


def _volume(text: str) -> Volume:
    """Return ``NAME:PATH`` as a volume; raises ``ValueError`` for other text."""
    from holdfast.bootstrap.job_files.job import Volume

    name, colon, path = text.partition(":")
    if not (name and colon and path.startswith("/")):
        raise ValueError
    return Volume(name, path.rstrip("/") or "/")


_volume.__name__ = "NAME:PATH with an absolute path"  # argparse prints it
