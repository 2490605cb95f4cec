"""Translates the TrainingArguments of Hugging Face transformers into settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.domain.errors import ConfigurationError

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

TOGETHER: Mapping[str, str] = MappingProxyType(
    {
        "gradient_accumulation_steps": "optimizer.batch_size: its product with per_device_train_batch_size",
        "adam_beta1": "optimizer.betas: the first",
        "adam_beta2": "optimizer.betas: the second",
        "bf16": "optimizer.precision",
        "fp16": "optimizer.precision",
        "lr_scheduler_type": "optimizer.schedule: kind, and floor where the rate ends",
        "lr_scheduler_kwargs": "optimizer.schedule: floor, decay_steps, decay_shape",
        "warmup_steps": "optimizer.schedule.warmup_steps; a share below 1 is of the number of steps",
        "warmup_ratio": "optimizer.schedule.warmup_steps, unless warmup_steps is set: its product with the number of "
        "steps",
        "report_to": "monitors: console, jsonl and the trackers of the list",
    }
)
"""The setting of each argument that becomes one together with others."""

VALUES: Mapping[str, Mapping[Any, Any]] = MappingProxyType(
    {
        "optim": {
            **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw_32bit"), "adamw"),
            **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw_8bit"),
            **dict.fromkeys(("lion_32bit", "lion", "paged_lion_32bit"), "lion"),
        },
        "torch_compile": {True: "default", False: "auto"},
        "use_cpu": {True: "cpu", False: "auto"},
        "gradient_checkpointing": {True: "full", False: "none"},
        "activation_checkpointing": {True: "full", False: "none"},
        "load_best_model_at_end": {True: 1, False: 0},
    }
)
WHOLE = frozenset({"max_steps", "num_train_epochs", "save_total_limit", "per_device_train_batch_size", "seed"})
STEPS = frozenset({"save_steps", "eval_steps"})
"""Arguments in steps; a share below 1 is of the steps of the run."""

FORMER: Mapping[str, str] = MappingProxyType({"evaluation_strategy": "eval_strategy", "no_cuda": "use_cpu"})
"""The present name of each argument that had another in transformers 4."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "learning_rate": 5e-5,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0,
        "bf16": False,
        "seed": 42,
    }
)
"""Trainer's value of each argument that changes the result and has a setting, for files that leave it out."""

_SCALE = "set optimizer.sharding=fsdp2"
CHANGING: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "model_name_or_path": (None, "set model.path"),
        "tokenizer_name": (None, "set tokenizer.path"),
        "dataset_name": (None, "set data.kind=huggingface and data.path"),
        "train_file": (None, "set data.path"),
        "validation_file": (None, "set evaluation.sets"),
        **dict.fromkeys(("block_size", "max_length", "max_seq_length"), (None, "set data.sequence_length")),
        "optim_args": (None, "options of the algorithm are settings of optimizer"),
        "optim_target_modules": (None, "no algorithm here projects gradients"),
        "label_smoothing_factor": (0.0, "the loss is cross-entropy without smoothing"),
        "neftune_noise_alpha": (None, "no noise is added to embeddings"),
        "parallelism_config": (None, "set distributed"),
        "fsdp": ((None, "", []), _SCALE),
        "fsdp_config": (None, _SCALE),
        "deepspeed": (None, "set optimizer.kind=deepspeed with optimizer.config=FILE"),
        "accelerator_config": (None, "with split_batches the batch is that of all processes: set optimizer.batch_size"),
        "data_seed": (None, "run.seed is the seed of the order of the data too"),
        "train_sampling_strategy": ("random", "rows are read in a random order"),
        "group_by_length": (False, "rows are read in a random order"),
        "split_batches": ((None, False), "the batch is that of all processes then: set optimizer.batch_size"),
        "adafactor": (False, "there is no such algorithm: set optimizer.algorithm"),
        "dataloader_drop_last": (False, "only the last batch of the run is smaller, and it is trained on"),
        "average_tokens_across_devices": (True, "each target counts once, whatever its process"),
        "ignore_data_skip": (False, "a resumed run goes on with the next batch"),
        "packing": (False, "documents are always packed into rows, and kept apart"),
        "tf32": (None, "set optimizer.precision"),
        **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), (False, "evaluations compute in optimizer.precision")),
    }
)
"""The default and the reason of each argument without a setting that changes the result."""

_UNIT = "it is set by steps: "
_PUSH = "export the model, and upload the folder by the hub's own command"
REASONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "run_name": (None, "the name of a run is its folder: set run.name in place of run.dir"),
        "eval_strategy": (("no", "steps"), _UNIT + "evaluation.every, 0 for the end alone"),
        "eval_delay": (0, "evaluations begin with evaluation.every"),
        "save_strategy": ("steps", _UNIT + "state_store.every, 0 for the end alone"),
        "save_only_model": (False, "each checkpoint holds all that an exact resume needs"),
        "metric_for_best_model": (
            (None, "loss", "eval_loss"),
            "--best selects the best by early stopping (recovery.early_stopping.metric), or the lowest evaluation loss",
        ),
        "resume_from_checkpoint": (None, "the same command continues by itself"),
        "auto_find_batch_size": (False, "optimizer.micro_batch=auto, the default, does this"),
        "push_to_hub": (False, _PUSH),
        "ddp_backend": (None, "the backend of the device is used"),
    }
)
"""The default and the reason of each well-known argument that has no setting and changes no result."""

_TRUE = """
    dataloader_in_order dataloader_pin_memory eval_do_concat_batches log_on_each_node logging_nan_inf_filter
    remove_unused_columns skip_memory_metrics save_safetensors
"""
_ON: Mapping[str, Any] = {
    **dict.fromkeys(_TRUE.split(), True),
    "hub_strategy": "every_save",
    "length_column_name": "length",
    "log_level": "passive",
    "project": "huggingface",
    "log_level_replica": "warning",
    "include_num_input_tokens_seen": "no",
    "logging_strategy": "steps",
    "logging_steps": 500,
    "half_precision_backend": "auto",
    "fp16_backend": "auto",
    "fp16_opt_level": "O1",
    "ray_scope": "last",
    "past_index": -1,
    "local_rank": -1,
    "hub_token": "<HUB_TOKEN>",  # as it is written
}
_NONE_OR_OFF = """
    activation_checkpointing_kwargs batch_eval_metrics dataloader_in_order dataloader_multiprocessing_context
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph debug disable_tqdm do_eval do_predict do_train
    enable_jit_checkpoint eval_accumulation_steps eval_do_concat_batches eval_use_gather_object
    gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision
    hub_strategy hub_token include_for_metrics include_num_input_tokens_seen label_names length_column_name
    liger_kernel_config local_rank log_level log_level_replica log_on_each_node logging_first_step
    logging_nan_inf_filter logging_steps logging_strategy prediction_loss_only project remove_unused_columns
    restore_callback_states_from_checkpoint save_on_each_node skip_memory_metrics torch_compile_backend
    torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id use_cache
    use_liger_kernel
    logging_dir overwrite_output_dir save_safetensors past_index fp16_opt_level half_precision_backend fp16_backend
    tpu_num_cores tpu_metrics_debug use_mps_device use_ipex jit_mode_eval torchdynamo ray_scope mp_parameters
    include_inputs_for_metrics include_tokens_per_second push_to_hub_model_id push_to_hub_organization
    push_to_hub_token fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap
    dispatch_batches
"""
WITHOUT_EFFECT: Mapping[str, Any] = MappingProxyType({**dict.fromkeys(_NONE_OR_OFF.split()), **_ON})
"""The default of each argument that has no meaning here, of transformers 4 too; None for those that are off."""

_AXOLOTL = """
    base_model micro_batch_size num_epochs sequence_len datasets val_set_size sample_packing lora_r lora_alpha
    lora_target_linear adapter lr_scheduler dataset_prepared_path special_tokens pad_to_sequence_len train_on_inputs
    load_in_4bit load_in_8bit evals_per_epoch saves_per_epoch
"""
_LLAMA_FACTORY = """
    finetuning_type stage cutoff_len template dataset dataset_dir lora_target lora_rank preprocessing_num_workers
    val_size plot_loss max_samples overwrite_cache
"""
FOREIGN: Mapping[str, frozenset[str]] = MappingProxyType(
    {"Axolotl": frozenset(_AXOLOTL.split()), "LLaMA-Factory": frozenset(_LLAMA_FACTORY.split())}
)
"""The keys by which the configurations of other programs are known."""


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
    imported = Imported()
    given = {FORMER.get(name, name): value for name, value in arguments.items()}
    _check_numbers(given)
    if num_steps is None and _is_whole(given.get("max_steps"), 1):
        num_steps = int(given["max_steps"])
    if given.get("torch_compile_mode") or given.get("torch_compile_backend"):
        given["torch_compile"] = True
    given |= _assume(given, imported, has_steps=num_steps is not None)
    for name, value in given.items():
        if name in SETTINGS:
            _set(name, value, imported, num_steps)
        elif name not in TOGETHER:
            _sort(name, value, given, imported)
    _together(given, imported)
    _follow_evaluations(given, imported)
    _plan_rate(given, imported, num_steps)
    if num_steps is not None:
        _plant(imported.settings, _NUMBER_OF_STEPS, num_steps)
        if arguments.get("num_train_epochs") is not None:
            imported.reasons["num_train_epochs"] = f"{_NUMBER_OF_STEPS} is given instead"
    return imported


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


_COSINES = ("cosine", "cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr")
_HALF_WAVE = {"cosine_with_restarts": 1}
_KINDS = ("constant", "constant_with_warmup", "linear", "polynomial", "warmup_stable_decay", *_COSINES)
# The options of each kind that have one value here, that of transformers.
_FIXED: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"num_cycles": _HALF_WAVE.get(kind, 0.5)} for kind in _COSINES},
    "polynomial": {"power": 1.0},
    "warmup_stable_decay": {"warmup_type": "linear", "num_cycles": 0.5, "num_stable_steps": None},
}
_FLOORS = ("min_lr", "min_lr_rate", "min_lr_ratio", "lr_end")


def schedule_of(
    kind: Any, options: Mapping[str, Any], *, rate: float, warmup: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``optimizer.schedule`` for a schedule of Trainer, and a reason for each argument that it has no value for.

    ``rate`` is the peak, ``warmup`` the steps of the warm-up.
    """
    if kind not in _KINDS:
        msg = f"there is no {kind!r}, and the settings keep the default: set optimizer.schedule"
        return {"warmup_steps": warmup}, {"lr_scheduler_type": msg}
    if kind in ("constant", "constant_with_warmup"):
        return {"kind": "constant", "warmup_steps": warmup if kind != "constant" else 0}, _odd(kind, options)
    floor = {**({"lr_end": 1e-7} if kind == "polynomial" else {}), **_given(options)}
    schedule: dict[str, Any] = {"warmup_steps": warmup, "floor": _floor(floor, rate)}
    if kind == "warmup_stable_decay":
        shape, steps = options.get("decay_type", "cosine"), options.get("num_decay_steps")
        schedule = {"kind": "wsd", **schedule, "decay_steps": steps, "decay_shape": shape}
        if shape not in ("linear", "1-sqrt") or steps is None:
            msg = "wsd needs num_decay_steps, and a decay_type linear or 1-sqrt (cosine, the default, has no setting)"
            return {"warmup_steps": warmup}, {"lr_scheduler_kwargs": f"{msg}: set optimizer.schedule"}
        odd = _odd(kind, options)
        if schedule["floor"] and warmup:
            odd = {"lr_scheduler_kwargs": "the warm-up begins at 0, and not at min_lr_ratio", **odd}
        return schedule, odd
    return {"kind": "cosine" if kind in _COSINES else "linear", **schedule}, _odd(kind, options)


def warmup_of(given: Mapping[str, Any], num_steps: int | None) -> int | None:
    """Return the steps of the warm-up, as Trainer takes them; None for a share of an unknown number of steps.

    ``warmup_steps`` comes before ``warmup_ratio``; below 1 it is a share too.
    """
    steps = given.get("warmup_steps") or 0
    share = steps if 0 < steps < 1 else 0 if steps else given.get("warmup_ratio") or 0
    if not share:
        return int(steps)
    return None if num_steps is None else math.ceil(num_steps * share)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in _FLOORS if options.get(name) is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            msg = f"lr_scheduler_kwargs.{name} takes a number, and this is {value!r}"
            raise ConfigurationError(msg)
    return given


def _floor(options: Mapping[str, Any], rate: float) -> float:
    """Return the rate at the end as a share of the peak ``rate``."""
    for name, value in options.items():
        return float(value) / rate if rate and name in ("min_lr", "lr_end") else float(value)
    return 0.0


def _odd(kind: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return a reason for options of the schedule ``kind`` that have no setting."""
    known = {
        "polynomial": ("lr_end",),
        "warmup_stable_decay": ("num_decay_steps", "decay_type", "min_lr_ratio"),
        "cosine_with_min_lr": ("min_lr", "min_lr_rate"),
        "cosine_warmup_with_min_lr": ("min_lr", "min_lr_rate"),
    }.get(kind, ())
    fixed = _FIXED.get(kind, {})
    odd = [
        name
        for name, value in options.items()
        if value is not None and name not in known and not (name in fixed and value == fixed[name])
    ]
    return {"lr_scheduler_kwargs": f"optimizer.schedule has no {', '.join(odd)} for {kind}"} if odd else {}
