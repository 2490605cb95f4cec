"""The command of each machine of a job."""

from __future__ import annotations

import shlex

import pytest

from holdfast.bootstrap.cli.main import _parser
from holdfast.bootstrap.job_files.job import ExpandedWord, command_words, shell_command
from holdfast.bootstrap.process.torchrun import torchrun_parser
from tests.support.job_examples import SETTINGS, job


def test_machines_of_a_run_meet_by_torchrun():
    """The parser of torchrun understands the options, and they name the place, the processes and the grace period."""
    words = command_words(job(grace_seconds=90), endpoint="first:29500", meeting="mine")
    assert words[:3] == ["python", "-m", "holdfast.torchrun"]
    options = torchrun_parser().parse_args(words[3:])
    assert (options.nnodes, options.nproc_per_node, options.shutdown_timeout) == ("4", "2", 90)
    assert (options.rdzv_backend, options.rdzv_endpoint, options.rdzv_id) == ("c10d", "first:29500", "mine")
    assert (options.module, options.training_script) == (True, "holdfast")
    assert options.training_script_args == ["train", *SETTINGS]


@pytest.mark.parametrize("more", [{}, {"starts_processes": False}])
def test_one_machine_needs_no_meeting(more):
    """The command starts the processes of its machine itself, or torchrun does if distributed.kind asks for it."""
    words = command_words(job(1, **more))
    assert "--rdzv-endpoint" not in words
    assert ("--standalone" in words) == bool(more)
    assert ("distributed.processes=2" in words) != bool(more)


def test_one_process_needs_no_launcher():
    """A run that starts no process itself, as with distributed.kind=single, is called as it is."""
    assert command_words(job(1, processes=1, starts_processes=False)) == [
        "python",
        "-m",
        "holdfast",
        "train",
        *SETTINGS,
    ]


def test_a_preparation_has_a_part_for_each_machine():
    """A part is numbered where there are several, and no process waits for another."""
    assert command_words(job(4, "prepare"), part="2/4")[2:6] == ["holdfast", "prepare", "--part", "2/4"]
    assert "--part" not in command_words(job(1, "prepare"), part="0/1")


def test_a_shell_reads_the_words_again():
    """Settings reach the command as they are, and only words that a shell is to expand are left to it."""
    words = command_words(job(), endpoint=ExpandedWord('"$head:29500"'), meeting="mine")
    read = shlex.split(shell_command(words, before="srun ").replace("\\\n", " "))
    assert read == ["srun", *(word.strip('"') if isinstance(word, ExpandedWord) else word for word in words)]


def test_the_command_line_takes_the_words():
    """The words after the module are a command with settings."""
    words = command_words(job(1))
    options = _parser()[0].parse_args(words[words.index("holdfast") + 1 :])
    assert options.settings == [*SETTINGS, "distributed.processes=2"]
