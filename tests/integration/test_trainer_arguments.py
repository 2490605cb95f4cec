"""Settings of the real TrainingArguments."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re

import pytest
import torch
import yaml
from transformers import SchedulerType, TrainingArguments, get_scheduler

from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.stages.build.model import schedule
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.trainer_arguments import (
    CHANGING,
    REASONS,
    SETTINGS,
    TOGETHER,
    WITHOUT_EFFECT,
    import_arguments,
    table,
)
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.step_outcome import Progress
from tests.support.command_line import ROOT, corpus, tiny


def test_the_printed_settings_load(tmp_path, capsys):
    """The JSON of the real class becomes settings that load, and what has its default is named in no comment."""
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
    comments = [line for line in printed.splitlines() if line.startswith("#")]
    known = "# without a meaning here: dataloader_pin_memory"  # Trainer switches it off with use_cpu
    assert comments == ["# num_train_epochs: run.budget.steps is given instead", known]
    assert yaml.safe_load(printed)["optimizer"]["epsilon"] == 1e-8


def test_the_help_asks_for_no_setting_that_is_printed(capsys):
    """The settings that remain to be set by hand are none that an argument becomes."""
    with pytest.raises(SystemExit):
        main(["import-trainer-args", "--help"])
    named = {*re.findall(r"[a-z]+\.[a-z_]+", capsys.readouterr().out)}
    assert {"data.path", "optimizer.batch_size"} <= named
    assert not named & {*SETTINGS.values()}


def test_a_value_without_counterpart_is_named():
    """An optimizer that Holdfast lacks is named with its reason, before what changes no result, and sets nothing."""
    found = import_arguments({"optim": "adafactor", "learning_rate": 1e-3, "log_level": "info", "cut": 3})
    assert "algorithm" not in found.settings["optimizer"]
    assert found.differing["optim"].startswith("optimizer.algorithm has no value for 'adafactor'")
    assert (found.unknown, found.others) == (["cut"], ["log_level"])


def test_what_is_off_is_not_named():
    """An argument that is off or null and has no setting leaves no comment."""
    off = {"max_steps": -1, "dataloader_num_workers": 0, "push_to_hub": False, "fsdp": "", "debug": [], "tf32": None}
    found = import_arguments(off)
    assert (found.differing, found.unknown, found.reasons, found.others) == ({}, [], {}, [])


FIELDS = dataclasses.fields(TrainingArguments)
OTHERS = {"lr_scheduler_type": "inverse_sqrt", "lr_scheduler_kwargs": {"power": 2.0}, "optim": "sgd", "max_steps": 7}
OTHERS |= {"save_total_limit": 5, "bf16": True, "fp16": True, "report_to": ["wandb"], "eval_steps": 7, "fsdp": "full"}
OTHERS |= {"accelerator_config": {"split_batches": True}, "debug": ["x"], "eval_strategy": "epoch", "seed": 7}
OTHERS |= {"output_dir": "out", "save_strategy": "epoch", "lr_scheduler_type": "constant", "fsdp_config": {"a": 1}}


def default_of(field):
    given = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return None if given is dataclasses.MISSING else given


def another(field):
    """Return another value of ``field`` than its default, of its kind."""
    if field.name in OTHERS:
        return OTHERS[field.name]
    value = default_of(field)
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
    return True if value is None and "bool" in str(field.type) else "some"


def told(found):
    return {*found.differing, *found.unknown, *found.reasons, *found.others}


def test_each_argument_of_the_real_class_is_taken_or_named():
    """Another value than Trainer's is a setting or named; the default of Trainer, as null, is named nowhere."""
    odd = []
    for field in FIELDS:
        beside = {"learning_rate": 5e-5, **({"fsdp": "full"} if field.name == "fsdp_config" else {})}
        plain = import_arguments(beside)
        off = [import_arguments(beside | {field.name: value}) for value in (default_of(field), None)]
        found = import_arguments(beside | {field.name: another(field)})
        is_known = found.settings != plain.settings or field.name in told(found)
        if not is_known or field.name in found.unknown or [told(plain)] * 2 != [told(each) for each in off]:
            odd.append(field.name)
    assert odd == []


def test_what_is_missing_is_as_in_trainer(tmp_path, capsys):
    """A file with a few arguments gives the settings of the whole file, and says which values were not in it."""
    few = {"learning_rate": 2e-5, "gradient_accumulation_steps": None}
    whole = TrainingArguments(output_dir="out", use_cpu=True, learning_rate=2e-5)
    every = import_arguments(whole.to_dict()).settings
    found = import_arguments(few)
    assert {key: value for key, value in found.settings["optimizer"].items() if every["optimizer"][key] != value} == {}
    assert (found.settings["data"], found.settings["run"]) == (every["data"], {"seed": 42})
    assert found.assumed.keys() >= {"num_train_epochs", "per_device_train_batch_size", "seed", "max_grad_norm"}
    (tmp_path / "few.yaml").write_text("learning_rate: 2e-5\nneftune_noise_alpha: 5\n")
    assert main(["import-trainer-args", str(tmp_path / "few.yaml")]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("# neftune_noise_alpha: ")
    assert "# not in the file, so as in Trainer: num_train_epochs=3, " in printed.out
    assert printed.err.startswith("neftune_noise_alpha: without a setting, and results may differ")


def test_epochs_are_the_length_of_a_run_without_steps():
    """Epochs become those of the data, of which the run makes steps, unless the number of steps is known."""
    assert import_arguments({"num_train_epochs": 3.0, "max_steps": -1}).settings["data"] == {"epochs": 3}
    assert TrainSettings(data={"kind": "files", "path": "text", "epochs": 3}).run.budget.steps is None
    found = import_arguments({"num_train_epochs": 3.0, "max_steps": 70})
    assert (found.settings["run"]["budget"], found.settings.get("data")) == ({"steps": 70}, None)
    assert "run.budget.steps is given" in found.reasons["num_train_epochs"]
    reason = import_arguments({"num_train_epochs": 0.5}).differing["num_train_epochs"]
    assert reason.endswith("takes a whole number, and this is 0.5: give --steps")


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_falling_learning_rate_ends_with_the_run(kind):
    """Linear and cosine rates fall to 0 over the epochs or the given steps, of which a warm-up takes its share."""
    given = {"num_train_epochs": 1.0, "max_steps": -1, "lr_scheduler_type": kind, "warmup_ratio": 0.03}
    found = import_arguments(given)
    assert found.settings["optimizer"]["schedule"] == {"kind": kind, "floor": 0.0}
    assert "--steps" in found.differing["warmup_ratio"]
    settings = import_arguments(given, num_steps=254).settings
    assert settings["run"]["budget"] == {"steps": 254}
    assert settings["optimizer"]["schedule"] == {"kind": kind, "warmup_steps": 8, "floor": 0.0}


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, 100),
        ({"warmup_ratio": 0.1, "warmup_steps": 40}, 40),
        ({"warmup_ratio": 0.1, "warmup_steps": None}, 100),
        ({"warmup_steps": 0.25}, 250),
        ({"warmup_steps": 7.9}, 7),
        ({}, 0),
    ],
)
def test_the_warm_up_is_that_of_trainer(given, steps):
    """Steps come before a share, a share is of all steps, and without the number of steps it is named."""
    assert import_arguments(given | {"max_steps": 1000}).settings["optimizer"]["schedule"]["warmup_steps"] == steps
    is_share = steps >= 100
    assert bool({"warmup_steps", "warmup_ratio"} & {*import_arguments(given | {"seed": 1}).differing}) == is_share


def rates(found, steps):
    """Return the rate of each step under the imported schedule."""
    section = TorchOptimizerSettings(
        kind="accelerate", **{k: found.settings["optimizer"][k] for k in ("learning_rate", "schedule")}
    )
    made = schedule(section.learning_rate, section.schedule, Budget(steps=steps))
    return [made.at(Progress(step=step)) for step in range(steps)]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("linear", None),
        ("cosine", {}),
        ("constant", {}),
        ("constant_with_warmup", None),
        ("cosine_with_restarts", {"num_cycles": 1}),
        ("polynomial", {"lr_end": 1e-5}),
        ("polynomial", {}),
        ("cosine_with_min_lr", {"min_lr": 2e-6}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.2}),
        ("warmup_stable_decay", {"num_decay_steps": 15, "decay_type": "linear"}),
        ("warmup_stable_decay", {"num_decay_steps": 15, "decay_type": "1-sqrt"}),
    ],
)
def test_a_schedule_of_trainer_has_its_rates(kind, options):
    """The rates are those of the real schedule, but for the first step of a warm-up, which is above 0."""
    given = {"learning_rate": 5e-5, "lr_scheduler_type": kind, "lr_scheduler_kwargs": options, "warmup_steps": 10}
    found = import_arguments({**given, "max_steps": 60})
    assert found.differing == {}
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=5e-5)
    real = get_scheduler(kind, optimizer, 10, 60, scheduler_specific_kwargs=options)
    expected = []
    for _ in range(60):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        real.step()
    begin = 0 if kind == "constant" else 10
    if kind.endswith("decay") and "1-sqrt" in options.values():
        expected = expected[:45]
    assert rates(found, 60)[begin : len(expected)] == pytest.approx(expected[begin:], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("kind", [kind.value for kind in SchedulerType])
def test_each_schedule_is_taken_or_named(kind):
    """A schedule becomes one of Holdfast without a word, or is named; options that are not understood are named."""
    options = {"min_lr": 1e-6} if "min_lr" in kind else {"num_decay_steps": 5, "decay_type": "linear"}
    options = options if "min_lr" in kind or kind == "warmup_stable_decay" else {}
    given = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": options, "max_steps": 50}
    found = import_arguments(given)
    is_taken = "kind" in found.settings["optimizer"]["schedule"]
    assert is_taken == ("lr_scheduler_type" not in found.differing)
    assert is_taken or kind in {"inverse_sqrt", "reduce_lr_on_plateau", "greedy"}
    odd = import_arguments({**given, "lr_scheduler_kwargs": {**options, "num_waves": 3}})
    assert {"lr_scheduler_type", "lr_scheduler_kwargs"} & odd.differing.keys()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base_model: x\nmicro_batch_size: 2\nwarmup_steps: 3\n", "a configuration of Axolotl (base_model, micro_b"),
        ("stage: sft\nfinetuning_type: lora\nlearning_rate: 1e-4\n", "of LLaMA-Factory (stage, finetuning_type)"),
        ("model: {path: x}\nepochs: 3\n", "there is no argument of TrainingArguments here (model, epochs)"),
        ("learning_rate: fast\n", "learning_rate takes a number, and this is 'fast'"),
        ("per_device_train_batch_size: [1]\n", "per_device_train_batch_size takes a number, and this is [1]"),
        ("lr_scheduler_kwargs: 3\n", "lr_scheduler_kwargs takes values by name"),
    ],
)
def test_other_files_are_refused_by_a_sentence(text, message, tmp_path, capsys):
    """The configuration of another program, and a value that is no number, end the command by what was found."""
    (tmp_path / "other.yaml").write_text(text)
    assert main(["import-trainer-args", str(tmp_path / "other.yaml")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, "odd", [], {"a": 1}, -3, 2.5], ids=repr)
def test_no_value_is_a_traceback(value):
    """Any value of any argument becomes settings, is named, or is refused by a sentence."""
    outcomes = []
    for field in FIELDS:
        try:
            outcomes.append(import_arguments({"learning_rate": 5e-5, field.name: value}))
        except ConfigurationError as refusal:
            outcomes.append(str(refusal))
    assert all(outcomes)


def test_all_checkpoints_are_kept_without_a_limit():
    """A limit of null keeps all checkpoints, as Trainer does; a number keeps the newest."""
    assert import_arguments({"save_total_limit": None}).settings["state_store"] == {"keep_every": 1}
    assert import_arguments({"save_total_limit": 2}).settings["state_store"] == {"keep": 2}


def test_trackers_become_monitors():
    """The trackers of report_to come beside the console and the metrics of the run folder; others are named."""
    kinds = [{"kind": "console"}, {"kind": "jsonl"}, {"kind": "tensorboard"}]
    assert import_arguments({"report_to": ["tensorboard"]}).settings["monitors"] == kinds
    assert "monitors" not in import_arguments({"report_to": "none"}).settings
    assert "monitors" in import_arguments({"report_to": ["comet_ml"]}).reasons["report_to"]


def test_each_argument_has_one_meaning():
    """No argument is in two of the tables, and each argument of the real class is in one."""
    tables = [{*SETTINGS}, {*TOGETHER}, {*CHANGING}, {*REASONS}, {*WITHOUT_EFFECT}]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert {field.name for field in FIELDS} <= set().union(*tables)


def test_the_program_of_the_page_prints_steps_and_evaluations(tmp_path):
    """The program in docs/from-hf-trainer.md trains by the file of settings, and its handlers are called."""
    page = (ROOT / "docs/from-hf-trainer.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    program = next(block for block in blocks if "subscribe" in block)
    settings = tiny(corpus(tmp_path), "run.budget.steps=2", "evaluation.at_start=false")
    (tmp_path / "trainer.yaml").write_text("evaluation: {every: 2}\n")
    program = program.replace('["data.path=train.jsonl", "run.dir=runs/moved"]', repr(settings))
    printed = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(printed):
        exec(program, {})
    assert re.findall(r"^(1|2|2) \d+\.\d+$", printed.getvalue(), re.MULTILINE) == ["1", "2", "2"]


def test_the_page_has_the_table():
    """The table of docs/from-hf-trainer.md is that of the mapping, and each argument is one of the real class."""
    assert (ROOT / "docs/from-hf-trainer.md").read_text(encoding="utf-8").endswith("\n\n" + table())
    fields = {*TrainingArguments.__dataclass_fields__, "warmup_ratio", "activation_checkpointing"}  # of some versions
    assert {*SETTINGS, *TOGETHER} <= fields
