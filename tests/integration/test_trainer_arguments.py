"""Settings of the real TrainingArguments."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from transformers import TrainingArguments

from holdfast.bootstrap.cli.main import main
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.trainer_arguments import REASONS, SETTINGS, TOGETHER, import_arguments, table
from tests.support.command_line import ROOT, corpus, tiny


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
    rest = {name for name, value in arguments.to_dict().items() if value} - {*SETTINGS, *TOGETHER}
    comments = " ".join(line[2:] for line in printed.splitlines() if line.startswith("#"))
    assert not [name for name in rest if not re.search(rf"\b{name}\b", comments)]
    assert yaml.safe_load(printed)["optimizer"]["epsilon"] == 1e-8


def test_the_help_asks_for_no_setting_that_is_printed(capsys):
    """The settings that remain to be set by hand are none that an argument becomes."""
    with pytest.raises(SystemExit):
        main(["import-trainer-args", "--help"])
    named = {*re.findall(r"[a-z]+\.[a-z_]+", capsys.readouterr().out)}
    assert {"data.path", "optimizer.batch_size"} <= named
    assert not named & {*SETTINGS.values()}


def test_a_value_without_counterpart_is_named():
    """An optimizer that Holdfast lacks is named with its reason, and sets nothing."""
    settings, reasons, others = import_arguments({"optim": "adafactor", "learning_rate": 1e-3, "log_level": "info"})
    assert settings == {"optimizer": {"learning_rate": 1e-3}}
    assert reasons == {"optim": "optimizer.algorithm has no value for 'adafactor'"}
    assert others == ["log_level"]


def test_what_is_off_is_not_named():
    """An argument that is off and has no setting leaves no comment, and a warm-up of 0 is a setting."""
    off = {"max_steps": -1, "dataloader_num_workers": 0, "push_to_hub": False, "fsdp": "", "debug": []}
    assert import_arguments({**off, "warmup_steps": 0}) == ({"optimizer": {"schedule": {"warmup_steps": 0}}}, {}, [])


def test_epochs_are_the_length_of_a_run_without_steps():
    """Epochs become those of the data, of which the run makes steps, unless the number of steps is known."""
    assert import_arguments({"num_train_epochs": 3.0, "max_steps": -1}) == ({"data": {"epochs": 3}}, {}, [])
    assert TrainSettings(data={"kind": "files", "path": "text", "epochs": 3}).run.budget.steps is None
    settings, reasons, _ = import_arguments({"num_train_epochs": 3.0, "max_steps": 70})
    assert settings == {"run": {"budget": {"steps": 70}}}
    assert "run.budget.steps is given" in reasons["num_train_epochs"]
    for name in ("num_train_epochs", "warmup_steps"):
        assert import_arguments({name: 0.5})[1][name].endswith("takes a whole number, and this is 0.5: give --steps")


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_falling_learning_rate_ends_with_the_run(kind):
    """Linear and cosine rates fall to 0 over the epochs or the given steps, of which a warm-up takes its share."""
    given = {"num_train_epochs": 1.0, "max_steps": -1, "lr_scheduler_type": kind, "warmup_ratio": 0.03}
    settings, reasons, _ = import_arguments(given)
    assert settings == {"data": {"epochs": 1}, "optimizer": {"schedule": {"kind": kind, "floor": 0.0}}}
    assert "--steps" in reasons["warmup_ratio"]
    settings = import_arguments(given, num_steps=254)[0]
    assert settings["run"]["budget"] == {"steps": 254}
    assert settings["optimizer"]["schedule"] == {"kind": kind, "warmup_steps": 8, "floor": 0.0}


def test_trackers_become_monitors():
    """The trackers of report_to come beside the console and the metrics of the run folder; others are named."""
    kinds = [{"kind": "console"}, {"kind": "jsonl"}, {"kind": "tensorboard"}]
    assert import_arguments({"report_to": ["tensorboard"]})[0] == {"monitors": kinds}
    assert import_arguments({"report_to": "none"}) == ({}, {}, [])
    assert "monitors" in import_arguments({"report_to": ["comet_ml"]})[1]["report_to"]


def test_well_known_arguments_have_a_reason_of_their_own():
    """Each reason belongs to an argument of the real class or of its relatives, and names none that has a setting."""
    known = {*TrainingArguments.__dataclass_fields__, "packing", "warmup_ratio", "fsdp", "tf32"}
    assert REASONS.keys() <= known
    assert not REASONS.keys() & {*SETTINGS, *TOGETHER}
    assert import_arguments({"data_seed": 7})[1]["data_seed"] == REASONS["data_seed"]


def test_the_program_of_the_page_prints_steps_and_evaluations(tmp_path):
    """The program in docs/from-hf-trainer.md trains by the file of settings, and its handlers are called."""
    page = (ROOT / "docs/from-hf-trainer.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = next(block for block in blocks if "subscribe" in block)
    settings = tiny(corpus(tmp_path), "run.budget.steps=2", "evaluation.at_start=false")
    (tmp_path / "trainer.yaml").write_text("evaluation: {every: 2}\n")
    program = program.replace('["data.path=train.jsonl", "run.dir=runs/moved"]', repr(settings))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.findall(r"^(1|2|2) \d+\.\d+$", done.stdout, re.MULTILINE) == ["1", "2", "2"]


def test_the_page_has_the_table():
    """The table of docs/from-hf-trainer.md is that of the mapping, and each argument is one of the real class."""
    assert (ROOT / "docs/from-hf-trainer.md").read_text(encoding="utf-8").endswith("\n\n" + table())
    fields = {*TrainingArguments.__dataclass_fields__, "warmup_ratio", "activation_checkpointing"}  # of some versions
    assert {*SETTINGS, *TOGETHER} <= fields
