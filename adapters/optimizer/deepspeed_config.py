"""A DeepSpeed configuration file beside a run's own settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADAMS = {"adam", "adamw"}


def read_config(path: str) -> dict[str, Any]:
    """Return the JSON of a DeepSpeed configuration; raises ``ConfigurationError`` if it is none."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"optimizer.config, {path}, cannot be read as DeepSpeed's JSON ({error})"
        raise ConfigurationError(msg) from error
    if not isinstance(config, dict):
        msg = f"optimizer.config, {path}, is no JSON object"
        raise ConfigurationError(msg)
    return config


def complete_config(config: Mapping[str, Any], own: Mapping[str, Any], *, num_ranks: int) -> dict[str, Any]:
    """Return ``config`` for the engine of a run whose values are ``own``, by dotted key of DeepSpeed.

    A value that is "auto" or absent is the run's; one that contradicts the run raises ``ConfigurationError``. Batches
    are cut by Holdfast, so the engine is told of one sample at a time; optimizer and schedule are Holdfast's.
    """
    for key, value in own.items():
        _refuse_other(key, _value_at(config, key), value)
    _refuse_uneven_batch(config, own, num_ranks)
    if str(_value_at(config, "optimizer.type") or "adamw").lower() not in _ADAMS:
        kind = config["optimizer"]["type"]
        msg = f"the DeepSpeed file's optimizer.type is {kind}, but optimizer.algorithm says what trains: leave it out"
        raise ConfigurationError(msg)
    if config.get("scheduler"):
        msg = "the DeepSpeed file has a scheduler, but optimizer.schedule sets the learning rate: leave scheduler out"
        raise ConfigurationError(msg)
    kept = {name: value for name, value in config.items() if name not in _OURS}
    return {
        **kept,
        "zero_optimization": _zero_of(config, own),
        "bf16": {**_section(config, "bf16"), "enabled": own["bf16.enabled"], "check_grad_overflow": True},
        "gradient_clipping": own["gradient_clipping"],
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


_OURS = {"optimizer", "fp16", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}


def _zero_of(config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    zero = {name: value for name, value in _section(config, "zero_optimization").items() if value != "auto"}
    zero["stage"] = own.get("zero_optimization.stage") or zero.get("stage", 2)
    for part in ("optimizer", "param"):
        device = own.get(f"zero_optimization.offload_{part}.device")
        if device is not None and device != "none":
            zero[f"offload_{part}"] = {**_section(zero, f"offload_{part}"), "device": device}
    return zero


def _refuse_other(key: str, theirs: object, ours: object) -> None:
    if ours is None or theirs is None or theirs in ("auto", ours):
        return
    if isinstance(theirs, list) and tuple(theirs) == ours:
        return
    if isinstance(theirs, (int, float)) and isinstance(ours, (int, float)) and float(theirs) == float(ours):
        return
    msg = (
        f"the DeepSpeed file's {key} is {theirs!r}, but the run's {_SETTING.get(key, 'settings')} is {ours!r}: "
        'make them equal, or write "auto" in the file'
    )
    raise ConfigurationError(msg)


_SETTING = {
    "zero_optimization.stage": "optimizer.stage",
    "zero_optimization.offload_optimizer.device": "optimizer.offload",
    "zero_optimization.offload_param.device": "optimizer.offload_parameters",
    "bf16.enabled": "optimizer.precision for bf16",
    "gradient_clipping": "optimizer.clip",
    "train_batch_size": "optimizer.batch_size",
    "train_micro_batch_size_per_gpu": "optimizer.micro_batch",
    "optimizer.params.lr": "optimizer.learning_rate",
    "optimizer.params.betas": "optimizer.betas",
    "optimizer.params.eps": "optimizer.epsilon",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
}


def _refuse_uneven_batch(config: Mapping[str, Any], own: Mapping[str, Any], num_ranks: int) -> None:
    micro, steps = (config.get(name) for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    whole = own.get("train_batch_size")
    if isinstance(micro, int) and isinstance(steps, int) and whole is not None and micro * steps * num_ranks != whole:
        msg = (
            f"the DeepSpeed file's micro-batches of {micro}, {steps} times on {num_ranks} processes, are "
            f"{micro * steps * num_ranks} sequences, but optimizer.batch_size is {whole}: make them equal, or write "
            '"auto" in the file'
        )
        raise ConfigurationError(msg)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _value_at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
