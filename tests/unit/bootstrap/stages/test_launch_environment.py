"""The variables of launchers."""

from __future__ import annotations

import pytest

from holdfast.adapters.optimizer.fsdp import refuse_launched_engine
from holdfast.bootstrap.adapter_choice.launch_environment import check_numbers, drop_stray_size, refuse_strangers
from holdfast.bootstrap.cli.main import main
from holdfast.domain.errors import ConfigurationError

TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("value", ["abc", "-1", "1.5"])
def test_what_is_no_number_is_named(name, value):
    """A variable of torchrun that is no number ends the command by its name."""
    with pytest.raises(ConfigurationError, match=f"{name}={value}, .*: unset {name}"):
        check_numbers({name: value})


def test_each_command_reads_numbers_only(monkeypatch, capsys):
    """No command has a traceback for such a variable, also none that trains nothing."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "x")
    assert main(["config"]) == 2
    assert "LOCAL_WORLD_SIZE=x" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2, .* no RANK, MASTER_ADDR, MASTER_PORT: unset WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "no MASTER_ADDR, MASTER_PORT"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS=2.* launch slurm"),
        ({"SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "SLURM_PROCID=1.* launch slurm"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4.* distributed.processes=4"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "mpirun .*PMI_SIZE=2"),
    ],
)
def test_processes_that_do_not_know_each_other_are_refused(environment, named):
    """Each task of srun or mpirun says how to launch instead of training alone, and how to train alone on purpose."""
    with pytest.raises(ConfigurationError, match=f"{named}.*distributed.kind=single"):
        refuse_strangers(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        TORCHRUN,
        TORCHRUN | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
        {"WORLD_SIZE": "1", "RANK": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # the script of a job, which srun has not started
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "PMI_SIZE": "1"},
    ],
)
def test_one_process_and_ranks_of_torchrun_are_accepted(environment):
    """A process alone trains alone, and ranks that torchrun started meet, whatever started torchrun."""
    before = dict(environment)
    refuse_strangers(environment)
    assert environment == before


def test_a_run_of_one_process_drops_a_stray_number():
    """Libraries do not wait for processes that there are not; what a launcher has set as a whole stays."""
    stray, launched = {"WORLD_SIZE": "2"}, dict(TORCHRUN)
    drop_stray_size(stray)
    drop_stray_size(launched)
    assert (stray, launched) == ({}, TORCHRUN)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "true", "optimizer.kind=deepspeed"),
        ("ACCELERATE_USE_FSDP", "1", "optimizer.sharding=fsdp2"),
        ("ACCELERATE_USE_MEGATRON_LM", "True", "distributed.mesh"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "true", "distributed.mesh"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "model.compile"),
    ],
)
def test_the_engine_of_a_launcher_is_refused_by_the_setting_that_chooses_it(name, value, remedy):
    """A variable that asks Accelerate for another engine is named with the setting for it; off is accepted."""
    with pytest.raises(ConfigurationError, match=f"{name}={value}.*{remedy}"):
        refuse_launched_engine(environment={name: value})
    refuse_launched_engine(name, {name: value})
    refuse_launched_engine(environment={name: "no"})


def test_what_the_settings_replace_is_said(caplog):
    """A precision or a batch of accelerate launch is not used without a word."""
    refuse_launched_engine(environment={"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "false"})
    assert [record.getMessage() for record in caplog.records] == [
        "the environment has ACCELERATE_MIXED_PRECISION=bf16, which is not used: optimizer.precision counts"
    ]
