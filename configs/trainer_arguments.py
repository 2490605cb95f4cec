"""Translates the TrainingArguments of Hugging Face transformers into settings."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "output_dir": "run.dir",
        "num_train_epochs": "data.epochs",
        "torch_compile": "model.compile",
        "use_cpu": "optimizer.device",
        "seed": "run.seed",
        "max_steps": "run.budget.steps",
        "full_determinism": "run.deterministic",
        "dataloader_num_workers": "data.workers",
        "per_device_train_batch_size": "optimizer.micro_batch",
        "learning_rate": "optimizer.learning_rate",
        "lr_scheduler_type": "optimizer.schedule.kind",
        "warmup_steps": "optimizer.schedule.warmup_steps",
        "optim": "optimizer.algorithm",
        "weight_decay": "optimizer.weight_decay",
        "adam_epsilon": "optimizer.epsilon",
        "max_grad_norm": "optimizer.clip",
        "gradient_checkpointing": "model.gradient_checkpointing",
        "activation_checkpointing": "model.gradient_checkpointing",
        "save_steps": "state_store.every",
        "save_total_limit": "state_store.keep",
        "load_best_model_at_end": "state_store.keep_best",
        "eval_steps": "evaluation.every",
        "eval_on_start": "evaluation.at_start",
        "per_device_eval_batch_size": "evaluation.batch_size",
        "ddp_timeout": "distributed.timeout_seconds",
    }
)
"""The setting of each argument whose value is translated alone."""

_VALUES: Mapping[str, Mapping[Any, Any]] = MappingProxyType(
    {
        "lr_scheduler_type": {"linear": "linear", "cosine": "cosine", "constant_with_warmup": "constant"},
        "optim": {
            **dict.fromkeys(("adamw_torch", "adamw_torch_fused"), "adamw"),
            **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit"), "adamw_8bit"),
            **dict.fromkeys(("lion_32bit", "lion"), "lion"),
        },
        "torch_compile": {True: "default", False: "auto"},
        "use_cpu": {True: "cpu", False: "auto"},
        "gradient_checkpointing": {True: "full", False: "none"},
        "activation_checkpointing": {True: "full", False: "none"},
        "load_best_model_at_end": {True: 1, False: 0},
    }
)
_WHOLE = frozenset(
    {
        "max_steps",
        "num_train_epochs",
        "warmup_steps",
        "dataloader_num_workers",
        "save_steps",
        "save_total_limit",
        "eval_steps",
    }
)
TOGETHER: Mapping[str, str] = MappingProxyType(
    {
        "gradient_accumulation_steps": "optimizer.batch_size: its product with per_device_train_batch_size",
        "adam_beta1": "optimizer.betas: the first",
        "adam_beta2": "optimizer.betas: the second",
        "bf16": "optimizer.precision",
        "fp16": "optimizer.precision",
        "warmup_ratio": "optimizer.schedule.warmup_steps: its product with the number of steps",
        "report_to": "monitors: console, jsonl and the trackers of the list",
    }
)
"""The setting of each argument that becomes one together with others."""
_UNIT = "it is set by steps: "
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "run_name": "the name of a run is its folder: set run.name in place of run.dir",
        "eval_strategy": _UNIT + "evaluation.every, 0 for the end alone",
        "save_strategy": _UNIT + "state_store.every, 0 for the end alone",
        "logging_strategy": _UNIT + "each step is recorded, and the console chooses by time",
        "logging_steps": "each step is recorded, and the console chooses by time",
        "metric_for_best_model": "the best checkpoint, which --best selects, is the best by early stopping "
        "(recovery.early_stopping.metric), or without it that of the lowest evaluation loss",
        "resume_from_checkpoint": "the same command continues by itself",
        "data_seed": "run.seed is the seed of the order of the data too",
        "fsdp": "set optimizer.sharding=fsdp2",
        "fsdp_config": "set optimizer.sharding=fsdp2",
        "deepspeed": "set optimizer.kind=deepspeed with optimizer.config=FILE",
        "tf32": "set optimizer.precision",
        "auto_find_batch_size": "optimizer.micro_batch=auto, the default, does this",
        "packing": "documents are always packed into rows, and kept apart",
        "push_to_hub": "export the model, and upload the folder by the hub's own command",
        "label_smoothing_factor": "the loss is cross-entropy without smoothing",
    }
)
"""The reason for each well-known argument without a setting of its own, with the nearest one."""
_NUMBER_OF_STEPS = "run.budget.steps"
_OFF: Mapping[str, int] = MappingProxyType({"max_steps": -1, "dataloader_num_workers": 0})
_BY_STEPS = frozenset({"num_train_epochs", "warmup_steps"})  # a share of them needs the number of steps
_TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


def import_arguments(
    given: Mapping[str, Any], *, num_steps: int | None = None
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return the settings of ``given``, nested, the reasons for arguments that have none, and further arguments.

    The further arguments have no setting, and no reason of their own. An argument that is off (None, False, 0 or
    empty) and has no setting is left out. ``num_steps`` is the length of the run, in place of epochs and max_steps.
    """
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    others: list[str] = []
    if num_steps is None and _is_whole(given.get("max_steps"), 1):
        num_steps = int(given["max_steps"])
    for name, value in _with_whole_warmup(given, num_steps).items():
        if name in TOGETHER or value is None or value == _OFF.get(name):
            continue
        if name not in SETTINGS:
            if name in REASONS and value:
                reasons[name] = REASONS[name]
            elif value:
                others.append(name)
        elif name in _VALUES and value not in _VALUES[name]:
            reasons[name] = f"{SETTINGS[name]} has no value for {value!r}"
        elif name in _WHOLE and not _is_whole(value, 0 if name == "warmup_steps" else 1):
            remedy = ": give --steps" if name in _BY_STEPS else ""
            reasons[name] = f"{SETTINGS[name]} takes a whole number, and this is {value!r}{remedy}"
        else:
            _plant(found, SETTINGS[name], _VALUES[name][value] if name in _VALUES else _plain(name, value))
    _together(given, found, reasons)
    _limit(found, reasons, num_steps)
    return found, reasons, others


def table() -> str:
    """Return the rows of docs/from-hf-trainer.md."""
    rows = {**{name: f"`{setting}`" for name, setting in SETTINGS.items()}, **TOGETHER}
    return "| argument | setting |\n|---|---|\n" + "".join(f"| `{name}` | {here} |\n" for name, here in rows.items())


def _plain(name: str, value: Any) -> Any:
    return int(value) if name in _WHOLE else value


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | float) and value >= least and value == int(value)


def _with_whole_warmup(given: Mapping[str, Any], num_steps: int | None) -> Mapping[str, Any]:
    """Return ``given`` with a warm-up in steps where it is a share of ``num_steps``, as Trainer rounds it."""
    share = given.get("warmup_ratio") or given.get("warmup_steps") or 0
    if num_steps is None or not 0 < share < 1:
        return given
    return {**given, "warmup_steps": math.ceil(num_steps * share)}


def _limit(found: dict[str, Any], reasons: dict[str, str], num_steps: int | None) -> None:
    """End the run as Trainer does, and the schedule with it."""
    falls = found.get("optimizer", {}).get("schedule", {}).get("kind") in {"linear", "cosine"}
    has_epochs = "epochs" in found.get("data", {})
    if falls:
        _plant(found, "optimizer.schedule.floor", 0.0)  # where Trainer's schedules end
    if num_steps is not None:
        _plant(found, _NUMBER_OF_STEPS, num_steps)
        if has_epochs:
            del found["data"]["epochs"]
            if not found["data"]:
                del found["data"]
            reasons["num_train_epochs"] = f"{_NUMBER_OF_STEPS} is given instead"


def _together(given: Mapping[str, Any], found: dict[str, Any], reasons: dict[str, str]) -> None:
    if rows := given.get("per_device_train_batch_size"):
        _plant(found, "optimizer.batch_size", rows * given.get("gradient_accumulation_steps", 1))
    if "adam_beta1" in given or "adam_beta2" in given:
        _plant(found, "optimizer.betas", [given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)])
    if "bf16" in given or "fp16" in given:
        precision = "bf16" if given.get("bf16") else "fp16" if given.get("fp16") else "fp32"
        _plant(found, "optimizer.precision", precision)
    reports = given.get("report_to") or []
    names = [name for name in ([reports] if isinstance(reports, str) else reports) if name != "none"]
    if names and set(names) <= set(_TRACKERS):
        _plant(found, "monitors", [{"kind": name} for name in ("console", "jsonl", *names)])
    elif names:
        reasons["report_to"] = f"set monitors: there are {', '.join(_TRACKERS)} and others"
    if given.get("warmup_ratio") and "warmup_steps" not in found.get("optimizer", {}).get("schedule", {}):
        reasons["warmup_ratio"] = "set optimizer.schedule.warmup_steps, or give --steps"


def _plant(tree: dict[str, Any], setting: str, value: Any) -> None:
    *sections, last = setting.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value
