"""Settings of the real TrainingArguments."""

from __future__ import annotations

import re

import pytest
from transformers import TrainingArguments

from holdfast.bootstrap.cli.main import main
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.trainer_arguments import REASONS, SETTINGS, TOGETHER, import_arguments, table
from tests.support.command_line import ROOT


def test_the_printed_settings_load(tmp_path, capsys):
    """The JSON of the real class becomes settings that load, with every other argument named in a comment."""
    chosen = {"max_steps": 70, "warmup_steps": 7, "gradient_accumulation_steps": 4, "learning_rate": 2e-5}
    arguments = TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, eval_steps=9, bf16=True, **chosen)
    (tmp_path / "arguments.json").write_text(arguments.to_json_string())
    assert main(["import-trainer-args", str(tmp_path / "arguments.json")]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "trainer.yaml").write_text(printed)
    settings = load_settings([tmp_path / "trainer.yaml"], [], {}).settings
    optimizer = settings.optimizer
    assert (settings.run.budget.steps, settings.evaluation.every, settings.run.seed) == (70, 9, 42)
    assert (optimizer.batch_size, optimizer.micro_batch, optimizer.learning_rate) == (32, 8, 2e-5)
    assert (optimizer.schedule.kind, optimizer.schedule.floor, optimizer.schedule.warmup_steps) == ("linear", 0, 7)
    assert (optimizer.betas, optimizer.precision) == ((0.9, 0.999), "bf16")
    rest = {name for name, value in arguments.to_dict().items() if value is not None} - {*SETTINGS, *TOGETHER}
    assert all(f"# {name}: " in printed for name in rest)


def test_the_help_asks_for_no_setting_that_is_printed(capsys):
    """The settings that remain to be set by hand are none that an argument becomes."""
    with pytest.raises(SystemExit):
        main(["import-trainer-args", "--help"])
    named = {*re.findall(r"[a-z]+\.[a-z_]+", capsys.readouterr().out)}
    assert {"data.path", "optimizer.batch_size"} <= named
    assert not named & {*SETTINGS.values()}


def test_a_value_without_counterpart_is_named():
    """An optimizer that Holdfast lacks is named with its reason, and sets nothing."""
    settings, reasons = import_arguments({"optim": "adafactor", "learning_rate": 1e-3})
    assert settings == {"optimizer": {"learning_rate": 1e-3}}
    assert reasons == {"optim": "optimizer.algorithm has no value for 'adafactor'"}


def test_epochs_end_a_run_without_steps():
    """Epochs become those of the data, unless Trainer follows its steps instead."""
    settings, reasons = import_arguments({"num_train_epochs": 3.0, "max_steps": -1})
    assert settings["data"] == {"epochs": 3}
    assert settings["run"]["budget"]["steps"] > 10**6
    assert list(reasons) == ["max_steps"]
    settings, reasons = import_arguments({"num_train_epochs": 3.0, "max_steps": 70})
    assert settings == {"data": {}, "run": {"budget": {"steps": 70}}}
    assert "max_steps is given" in reasons["num_train_epochs"]


def test_well_known_arguments_have_a_reason_of_their_own():
    """Each reason belongs to an argument of the real class or of its relatives, and names none that has a setting."""
    known = {*TrainingArguments.__dataclass_fields__, "packing", "warmup_ratio", "fsdp", "tf32"}
    assert REASONS.keys() <= known
    assert not REASONS.keys() & {*SETTINGS, *TOGETHER}
    assert import_arguments({"report_to": ["wandb"]})[1]["report_to"] == REASONS["report_to"]


def test_the_page_has_the_table():
    """The table of docs/from-hf-trainer.md is that of the mapping, and each argument is one of the real class."""
    assert (ROOT / "docs/from-hf-trainer.md").read_text(encoding="utf-8").endswith("\n\n" + table())
    assert {*SETTINGS, *TOGETHER} <= set(TrainingArguments.__dataclass_fields__)
