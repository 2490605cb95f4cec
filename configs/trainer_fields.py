"""The fields of TrainingArguments of Hugging Face transformers, and what each is here."""

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
_OFF = """
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
WITHOUT_EFFECT: Mapping[str, Any] = MappingProxyType({**dict.fromkeys(_OFF.split()), **_ON})
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
