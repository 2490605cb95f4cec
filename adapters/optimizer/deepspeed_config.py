"""Merges a DeepSpeed configuration file with the settings of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def read_config(path: str) -> dict[str, Any]:
    """Return the JSON of a DeepSpeed configuration; raises ``ConfigurationError`` if it is invalid."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_without_twins)
    except (OSError, ValueError, RecursionError) as error:
        msg = f"optimizer.config, {path}, cannot be read as DeepSpeed's JSON ({error})"
        raise ConfigurationError(msg) from error
    if not isinstance(config, dict):
        msg = f"optimizer.config, {path}, is not a JSON object"
        raise ConfigurationError(msg)
    return config


def unused_parts(path: str) -> str | None:
    """Return a sentence about the parts of the file that a run does not use, or None."""
    scheduler = read_config(path).get("scheduler")
    if not scheduler:
        return None
    kind = scheduler.get("type") if isinstance(scheduler, dict) else scheduler
    return f"{path} names a scheduler, {kind}, which is not used: optimizer.schedule sets the learning rate"


def asks_for_bf16(path: str) -> bool:
    """Return whether the file turns bf16 on."""
    config = read_config(path)
    return any(_value_at(config, f"{name}.enabled") is True for name in ("bf16", "bfloat16"))


def complete_config(config: Mapping[str, Any], own: Mapping[str, Any], *, num_ranks: int) -> dict[str, Any]:
    """Return ``config`` for the engine of a run whose values are ``own``, by dotted key of DeepSpeed.

    A value that is "auto" or absent in the file is taken from the run, or else is DeepSpeed's default. A value that the
    run leaves open (None) is taken from the file. Raises ``ConfigurationError`` if a value contradicts the run. Keys
    that Holdfast does not know are passed on unchanged. Batches are cut by Holdfast, so the engine is configured for
    one sample at a time; optimizer and schedule are Holdfast's, so a ``scheduler`` is left out (``unused_parts`` says
    so).
    """
    for name in _SECTIONS:
        if not isinstance(config.get(name, {}), dict):
            _reject(f"{name} is {config[name]!r}, which is not a JSON object: see DeepSpeed's documentation")
    for key, value in own.items():
        _check_value(key, _value_at(config, key), value)
    _check_precision(config, own)
    _check_batch_size(config, own, num_ranks)
    _check_algorithm(config, own)
    kept = _without_auto({name: value for name, value in config.items() if name not in _OURS})
    zero = _with_run(kept.get("zero_optimization", {}), own)
    _check_zero(zero)
    return {
        **kept,
        "zero_optimization": zero,
        "bf16": {**kept.get("bf16", {}), "enabled": own["bf16.enabled"], "check_grad_overflow": True},
        "gradient_clipping": own["gradient_clipping"],
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


_SECTIONS = ("zero_optimization", "bf16", "bfloat16", "fp16", "amp", "torch_autocast", "optimizer")
_OURS = {
    *("optimizer", "scheduler", "fp16", "bfloat16", "amp", "torch_autocast"),
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
}
_SETTING = MappingProxyType(
    {
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
)


def _with_run(zero: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    for part in ("offload_optimizer", "offload_param"):
        if not isinstance(zero.get(part) or {}, dict):
            _reject(f'zero_optimization.{part} is {zero[part]!r}: it must be an object, such as {{"device": "cpu"}}')
    whole = {**zero, "stage": own.get("zero_optimization.stage") or zero.get("stage", 2)}
    for part in ("offload_optimizer", "offload_param"):
        device = own.get(f"zero_optimization.{part}.device")
        if device is not None and device != "none":
            whole[part] = {**(zero.get(part) or {}), "device": device}
    return whole


def _check_value(key: str, theirs: object, ours: object) -> None:
    if ours is None or theirs is None or theirs in ("auto", ours):
        return
    if isinstance(theirs, list) and isinstance(ours, tuple) and tuple(theirs) == ours:
        return
    if isinstance(theirs, (int, float)) and isinstance(ours, (int, float)) and float(theirs) == float(ours):
        return
    _reject(
        f"{key} is {theirs!r}, but the run's {_SETTING.get(key, 'settings')} is {_plain(ours)!r}: make them equal, or "
        'write "auto" in the file'
    )


def _check_precision(config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    _check_value("bf16.enabled", _value_at(config, "bfloat16.enabled"), own["bf16.enabled"])
    precision = "bf16" if own["bf16.enabled"] else "fp32"
    for name in ("fp16", "amp", "torch_autocast"):
        if _value_at(config, f"{name}.enabled") is True:
            _reject(f"{name}.enabled is true, but the run's optimizer.precision is {precision}: leave {name} out")


def _check_batch_size(config: Mapping[str, Any], own: Mapping[str, Any], num_ranks: int) -> None:
    whole = own.get("train_batch_size")
    if whole is None:
        return
    at_once = own.get("train_micro_batch_size_per_gpu") or -(-whole // num_ranks)
    micro, steps = config.get("train_micro_batch_size_per_gpu"), config.get("gradient_accumulation_steps")
    if isinstance(steps, int):
        rows = micro if isinstance(micro, int) else at_once
        if rows * steps * num_ranks != whole:
            _reject(
                f"micro-batches of {rows}, {steps} times on {num_ranks} processes, are {rows * steps * num_ranks} "
                f'sequences, but optimizer.batch_size is {whole}: make them equal, or write "auto" in the file'
            )
    if isinstance(micro, int) and micro != at_once:
        _reject(
            f"train_micro_batch_size_per_gpu is {micro}, but without optimizer.micro_batch a process takes all its "
            f"{at_once} sequences at once: set optimizer.micro_batch={micro}"
        )


def _check_algorithm(config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    kind, ours = _value_at(config, "optimizer.type"), own.get("optimizer.algorithm", "adamw")
    if kind in (None, "auto") or str(kind).lower() == ours:
        return
    # DeepSpeed's Adam is AdamW by default
    decays_apart = _value_at(config, "optimizer.params.adam_w_mode") is not False
    if str(kind).lower() == "adam" and ours == "adamw" and decays_apart:
        return
    _reject(f"optimizer.type is {kind}, but the run's optimizer.algorithm is {ours}: leave optimizer out of the file")


def _check_zero(zero: Mapping[str, Any]) -> None:
    if zero["stage"] not in (1, 2, 3):
        _reject(f"zero_optimization.stage is {zero['stage']!r}: it must be 1, 2 or 3")
    for part, setting in (
        ("offload_optimizer", "optimizer.offload"),
        ("offload_param", "optimizer.offload_parameters"),
    ):
        offload = zero.get(part) or {}
        device = offload.get("device", "none")
        if part == "offload_param" and device != "none" and zero["stage"] != 3:
            msg = f"{setting} is {device}, but stage {zero['stage']} keeps all parameters on the device: set stage 3"
            raise ConfigurationError(msg)
        if device == "nvme" and not offload.get("nvme_path"):
            msg = (
                f"{setting} is nvme, but no path is given: write zero_optimization.{part}.nvme_path into a DeepSpeed "
                "file and name it in optimizer.config"
            )
            raise ConfigurationError(msg)


def _without_twins(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        msg = f"{next(name for name in names if names.count(name) > 1)} appears twice"
        raise ValueError(msg)
    return entries


def _without_auto(section: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, dict) else value
        for name, value in section.items()
        if value != "auto"
    }


def _value_at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _reject(fault: str) -> NoReturn:
    msg = f"the DeepSpeed file's {fault}"
    raise ConfigurationError(msg)
