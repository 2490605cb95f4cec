"""Translates the TrainingArguments of Hugging Face transformers into settings."""

from __future__ import annotations

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
        "save_steps": "state_store.every",
        "save_total_limit": "state_store.keep",
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
    }
)
"""The setting of each argument that becomes one together with others."""
_UNIT = "it is set by steps: "
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "run_name": "the name of a run is its folder: set run.name in place of run.dir",
        "report_to": "set monitors, such as monitors=[{kind: console}, {kind: jsonl}, {kind: wandb}]",
        "eval_strategy": _UNIT + "evaluation.every, 0 for the end alone",
        "save_strategy": _UNIT + "state_store.every, 0 for the end alone",
        "logging_strategy": _UNIT + "each step is recorded, and the console chooses by time",
        "logging_steps": "each step is recorded, and the console chooses by time",
        "load_best_model_at_end": "set state_store.keep_best, and name the checkpoint with --best",
        "metric_for_best_model": "set recovery.early_stopping.metric",
        "resume_from_checkpoint": "the same command continues by itself",
        "data_seed": "run.seed is the seed of the order of the data too",
        "fsdp": "set optimizer.sharding=fsdp2",
        "fsdp_config": "set optimizer.sharding=fsdp2",
        "deepspeed": "set optimizer.kind=deepspeed with optimizer.config=FILE",
        "tf32": "set optimizer.precision",
        "auto_find_batch_size": "optimizer.micro_batch=auto, the default, does this",
        "packing": "documents are always packed into rows, and kept apart",
        "warmup_ratio": "set optimizer.schedule.warmup_steps",
        "push_to_hub": "export the model, and upload the folder by the hub's own command",
        "label_smoothing_factor": "the loss is cross-entropy without smoothing",
    }
)
"""The reason for each well-known argument without a setting of its own, with the nearest one."""
_NO_SETTING = "no setting has this meaning"
_NUMBER_OF_STEPS = "run.budget.steps"
_UNBOUNDED = 1_000_000_000


def import_arguments(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of ``given``, nested, and the reason for each argument that has none."""
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, value in given.items():
        if name in TOGETHER or value is None:
            continue
        if name not in SETTINGS:
            reasons[name] = REASONS.get(name, _NO_SETTING)
        elif name in _VALUES and value not in _VALUES[name]:
            reasons[name] = f"{SETTINGS[name]} has no value for {value!r}"
        elif name in _WHOLE and (not isinstance(value, int | float) or value < 1 or value != int(value)):
            reasons[name] = f"{SETTINGS[name]} takes a whole number from 1, and this is {value!r}"
        else:
            _plant(found, SETTINGS[name], _VALUES[name][value] if name in _VALUES else _plain(name, value))
    if found.get("optimizer", {}).get("schedule", {}).get("kind") in {"linear", "cosine"}:
        _plant(found, "optimizer.schedule.floor", 0.0)  # where Trainer's schedules end
    _together(given, found)
    if "epochs" in found.get("data", {}) and "steps" not in found.get("run", {}).get("budget", {}):
        _plant(found, _NUMBER_OF_STEPS, _UNBOUNDED)  # the epochs end the run
    elif given.get("max_steps", -1) > 0 and found.get("data", {}).pop("epochs", None):
        reasons["num_train_epochs"] = "max_steps is given, which Trainer follows instead"
    return found, reasons


def table() -> str:
    """Return the rows of docs/from-hf-trainer.md."""
    rows = {**{name: f"`{setting}`" for name, setting in SETTINGS.items()}, **TOGETHER}
    return "| argument | setting |\n|---|---|\n" + "".join(f"| `{name}` | {here} |\n" for name, here in rows.items())


def _plain(name: str, value: Any) -> Any:
    return int(value) if name in _WHOLE else value


def _together(given: Mapping[str, Any], found: dict[str, Any]) -> None:
    if rows := given.get("per_device_train_batch_size"):
        _plant(found, "optimizer.batch_size", rows * given.get("gradient_accumulation_steps", 1))
    if "adam_beta1" in given or "adam_beta2" in given:
        _plant(found, "optimizer.betas", [given.get("adam_beta1", 0.9), given.get("adam_beta2", 0.999)])
    if "bf16" in given or "fp16" in given:
        precision = "bf16" if given.get("bf16") else "fp16" if given.get("fp16") else "fp32"
        _plant(found, "optimizer.precision", precision)


def _plant(tree: dict[str, Any], setting: str, value: Any) -> None:
    *sections, last = setting.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value
