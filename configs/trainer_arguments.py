"""Translates the TrainingArguments of Hugging Face transformers into settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.configs.trainer_fields import (
    CHANGING,
    DEFAULTS,
    FOREIGN,
    FORMER,
    REASONS,
    SETTINGS,
    STEPS,
    TOGETHER,
    VALUES,
    WHOLE,
    WITHOUT_EFFECT,
)
from holdfast.configs.trainer_schedule import schedule_of, warmup_of
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER_OF_STEPS = "run.budget.steps"
_GIVE_STEPS = "give --steps"
_OFF: Mapping[str, int] = {"max_steps": -1, "dataloader_num_workers": 0}
_NUMBERS = frozenset({*WHOLE, *STEPS, *(name for name, value in DEFAULTS.items() if type(value) in (int, float))})
_TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
_NO_CLIP = 1e9  # larger than the norm of any gradient that trains
_FEW = 3
_LOGGING_STEPS = 500


@dataclass(frozen=True, slots=True)
class Imported:
    """What TrainingArguments become: ``settings``, nested, of which ``assumed`` arguments were not given.

    ``differing`` are the reasons for arguments that change the result and have no setting, ``unknown`` the names that
    are no arguments of Trainer, ``reasons`` those for arguments that change no result, and ``others`` the names of
    arguments without a meaning here. An argument with the default of Trainer is in none of them.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    assumed: dict[str, Any] = field(default_factory=dict)
    differing: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


def import_arguments(arguments: Mapping[str, Any], *, num_steps: int | None = None) -> Imported:
    """Return the settings of TrainingArguments; those that change the result and are missing are Trainer's defaults.

    ``num_steps`` is the length of the run, in place of epochs and max_steps. Raises ``ConfigurationError`` for the
    configuration of another program, and for a value that is no number where one is needed.
    """
    _refuse_others(arguments)
    found = Imported()
    given = {FORMER.get(name, name): value for name, value in arguments.items()}
    _check_numbers(given)
    if num_steps is None and _is_whole(given.get("max_steps"), 1):
        num_steps = int(given["max_steps"])
    if given.get("torch_compile_mode") or given.get("torch_compile_backend"):
        given["torch_compile"] = True
    given |= _assume(given, found, has_steps=num_steps is not None)
    for name, value in given.items():
        if name in SETTINGS:
            _set(name, value, found, num_steps)
        elif name not in TOGETHER:
            _sort(name, value, given, found)
    _together(given, found)
    _follow_evaluations(given, found)
    _plan_rate(given, found, num_steps)
    if num_steps is not None:
        _plant(found.settings, _NUMBER_OF_STEPS, num_steps)
        if arguments.get("num_train_epochs") is not None:
            found.reasons["num_train_epochs"] = f"{_NUMBER_OF_STEPS} is given instead"
    return found


def table() -> str:
    """Return the tables of docs/from-hf-trainer.md."""
    rows = {**{name: f"`{setting}`" for name, setting in SETTINGS.items()}, **TOGETHER}
    without = {name: reason for name, (_, reason) in {**CHANGING, **REASONS}.items()}
    taken = "| argument | setting |\n|---|---|\n" + "".join(f"| `{name}` | {here} |\n" for name, here in rows.items())
    return f"{taken}\n| argument without a setting | what to do, or what holds here |\n|---|---|\n" + "".join(
        f"| `{name}` | {reason} |\n" for name, reason in without.items()
    )


def _refuse_others(arguments: Mapping[str, Any]) -> None:
    for program, keys in FOREIGN.items():
        if len(hits := [name for name in arguments if name in keys]) > 1:
            msg = f"this is a configuration of {program} ({', '.join(hits[:_FEW])}), whose keys mean other things than "
            raise ConfigurationError(msg + "TrainingArguments: set what it says by hand (docs/from-hf-trainer.md)")
    known = {*SETTINGS, *TOGETHER, *CHANGING, *REASONS, *WITHOUT_EFFECT, *FORMER}
    if not known.intersection(arguments):
        names = ", ".join(list(arguments)[:_FEW]) or "it is empty"
        msg = f"there is no argument of TrainingArguments here ({names}): give TrainingArguments.to_json_string()"
        raise ConfigurationError(msg)


def _check_numbers(given: Mapping[str, Any]) -> None:
    for name in sorted(_NUMBERS | {"warmup_ratio", "logging_steps"}):
        value = given.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            msg = f"{name} takes a number, and this is {value!r}"
            raise ConfigurationError(msg)
    if not isinstance(given.get("lr_scheduler_kwargs") or {}, dict):
        msg = "lr_scheduler_kwargs takes values by name: give a mapping"
        raise ConfigurationError(msg)


def _assume(given: Mapping[str, Any], found: Imported, *, has_steps: bool) -> Mapping[str, Any]:
    """Return Trainer's value of each argument that changes the result and is not in ``given``."""
    missing = {name: value for name, value in DEFAULTS.items() if given.get(name) is None}
    if has_steps:
        missing.pop("num_train_epochs", None)
    if given.get("warmup_ratio") is not None:
        missing.pop("warmup_steps", None)
    if given.get("fp16"):
        missing.pop("bf16", None)
    if "max_grad_norm" in given:
        missing.pop("max_grad_norm", None)
    found.assumed.update(missing)
    return missing


def _set(name: str, value: Any, found: Imported, num_steps: int | None) -> None:
    """Set the setting of the argument ``name``, or say why it keeps its default."""
    setting = SETTINGS[name]
    if name in STEPS and num_steps is not None and isinstance(value, float) and 0 < value < 1:
        value = math.ceil(num_steps * value)
    if name == "save_total_limit" and value is None:
        _plant(found.settings, "state_store.keep_every", 1)  # all are kept
    elif name == "max_grad_norm" and not value:
        _plant(found.settings, setting, _NO_CLIP)
    elif value is None or value == _OFF.get(name) or (name == "num_train_epochs" and num_steps is not None):
        return
    elif name in VALUES and (not isinstance(value, str | bool) or value not in VALUES[name]):
        known = ", ".join(dict.fromkeys(map(str, VALUES[name].values())))
        where = found.differing if name == "optim" else found.reasons
        where[name] = f"{setting} has no value for {value!r}, and keeps its default (there are {known})"
    elif name in WHOLE | STEPS and not _is_whole(value, 0 if name == "seed" else 1):
        remedy = f": {_GIVE_STEPS}" if name in {"num_train_epochs", *STEPS} else ""
        where = found.reasons if name in STEPS else found.differing
        where[name] = f"{setting} takes a whole number, and this is {value!r}{remedy}"
    elif name != "adam_epsilon" or "lion" not in str(found.settings.get("optimizer", {}).get("algorithm")):
        plain = int(value) if name in WHOLE | STEPS else value
        _plant(found.settings, setting, VALUES[name][value] if name in VALUES else plain)


def _sort(name: str, value: Any, given: Mapping[str, Any], found: Imported) -> None:
    """Say what an argument without a setting means, unless it has the default of Trainer."""
    if name == "accelerator_config" and not (isinstance(value, dict) and value.get("split_batches")):
        return
    if name == "fsdp_config" and not given.get("fsdp"):
        return
    for table_of, where in ((CHANGING, found.differing), (REASONS, found.reasons)):
        if name in table_of:
            default, reason = table_of[name]
            if value is not None and value not in (default if isinstance(default, tuple) else (default,)):
                where[name] = reason
            return
    default = WITHOUT_EFFECT.get(name)
    if value is not None and value != default and (value or default):
        (found.others if name in WITHOUT_EFFECT else found.unknown).append(name)


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= least and value == int(value)


def _together(given: Mapping[str, Any], found: Imported) -> None:
    rows, parts = given["per_device_train_batch_size"], given["gradient_accumulation_steps"]
    if _is_whole(rows, 1) and _is_whole(parts, 1):
        _plant(found.settings, "optimizer.batch_size", int(rows * parts))
    else:
        found.differing["gradient_accumulation_steps"] = f"optimizer.batch_size is no {rows!r} x {parts!r} rows"
    _plant(found.settings, "optimizer.betas", [given["adam_beta1"], given["adam_beta2"]])
    precision = "bf16" if given.get("bf16") else "fp16" if given.get("fp16") else "fp32"
    _plant(found.settings, "optimizer.precision", precision)
    reports = given.get("report_to") or []
    names = [str(name) for name in (reports if isinstance(reports, list) else [reports]) if name != "none"]
    if names and set(names) <= set(_TRACKERS):
        _plant(found.settings, "monitors", [{"kind": name} for name in ("console", "jsonl", *names)])
    elif names:
        found.reasons["report_to"] = f"set monitors: there are {', '.join(_TRACKERS)} and others"


def _follow_evaluations(given: Mapping[str, Any], found: Imported) -> None:
    """Evaluate as often as figures are recorded, where Trainer does so."""
    if given.get("eval_strategy") == "steps" and not given.get("eval_steps"):
        every = given.get("logging_steps") or _LOGGING_STEPS
        _set("eval_steps", every, found, None)


def _plan_rate(given: Mapping[str, Any], found: Imported, num_steps: int | None) -> None:
    """Set the schedule of the learning rate, which ends where Trainer's does."""
    warmup = warmup_of(given, num_steps)
    schedule, odd = schedule_of(
        given["lr_scheduler_type"],
        given.get("lr_scheduler_kwargs") or {},
        rate=given["learning_rate"],
        warmup=warmup or 0,
    )
    if warmup is None and given["lr_scheduler_type"] != "constant":
        del schedule["warmup_steps"]
        name = "warmup_steps" if given.get("warmup_steps") else "warmup_ratio"
        odd[name] = f"a share of the steps, whose number is not known here: {_GIVE_STEPS}, or set "
        odd[name] += "optimizer.schedule.warmup_steps, which keeps its default"
    _plant(found.settings, "optimizer.schedule", schedule)
    found.differing.update(odd)


def _plant(tree: dict[str, Any], setting: str, value: Any) -> None:
    *sections, last = setting.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[last] = value
