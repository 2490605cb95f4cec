"""Names and values of settings in other programs: not accepted here, but used to suggest the right ones."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEANINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "optimizer.learning_rate": ("lr", "max_lr", "peak_lr"),
        "optimizer.weight_decay": ("wd", "decay"),
        "optimizer.clip": ("grad_clip", "gradient_clipping", "max_grad_norm", "max_norm"),
        "optimizer.epsilon": ("eps", "adam_epsilon"),
        "optimizer.ema.decay": ("ema_decay", "ema_rate"),
        "optimizer.batch_size": ("bs", "batch", "global_batch_size", "train_batch_size"),
        "optimizer.micro_batch": ("mbs", "micro_batch_size", "per_device_train_batch_size"),
        "optimizer.precision": ("bf16", "fp16", "mixed_precision", "amp"),
        "optimizer.schedule.kind": ("lr_scheduler_type", "scheduler"),
        "optimizer.schedule.warmup_steps": ("warmup", "num_warmup_steps"),
        "model.balancing_loss": ("aux_loss_coef", "moe_aux_loss_coeff", "router_aux_loss_coef"),
        "run.budget.steps": ("steps", "max_steps", "num_steps", "max_iters"),
        "run.budget.minutes": ("minutes", "max_minutes", "max_time"),
        "run.dir": ("out_dir", "output_dir"),
        "data.epochs": ("num_epochs", "num_train_epochs"),
        "data.sequence_length": (
            "block_size",
            "context_length",
            "max_length",
            "max_seq_len",
            "max_seq_length",
            "seq_len",
        ),
        "data.workers": ("num_workers", "dataloader_num_workers"),
        "state_store.every": ("save_every", "save_steps"),
        "state_store.keep": ("save_total_limit",),
        "evaluation.every": ("eval_every", "eval_interval", "eval_steps"),
        "tokenizer.vocabulary_size": ("vocab_size",),
        "model.lora.rank": ("r", "lora_r", "lora_rank"),
        "model.lora.alpha": ("lora_alpha",),
        "model.lora.dropout": ("lora_dropout",),
    }
)
_BY_NAME = {name: setting for setting, names in _MEANINGS.items() for name in names}
# which model.kind=decoder has as settings, and a configuration of Hugging Face as fields of the same name
FIELDS_OF_CONFIG = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "head_dim", "max_position_embeddings", "rope_theta", "rope_scaling"),
        *("attention_bias", "mlp_bias", "tie_word_embeddings", "initializer_range"),
    }
)
_VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "model.activation": {
            "silu model.gated=true": ("swiglu",),
            "silu": ("swish",),
            "gelu model.gated=true": ("geglu",),
            "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
            "relu model.gated=true": ("reglu",),
        },
        "model.norm": {"rmsnorm": ("rms", "rms_norm"), "layernorm": ("layer_norm", "ln")},
        "model.positions": {"rope": ("rotary", "rotary_embedding"), "learned": ("absolute", "learned_absolute")},
        "model.quantize": {"4bit": ("nf4", "4", "int4", "bnb4", "qlora")},
        "optimizer.algorithm": {
            "adamw": ("adam", "adamw_torch", "adamw_torch_fused"),
            "adamw_8bit": ("adamw_bnb_8bit", "adam8bit", "adamw8bit"),
        },
        "optimizer.precision": {
            "bf16": ("bfloat16", "bf16-mixed", "bf16-true"),
            "fp16": ("float16", "half", "16-mixed", "16"),
            "fp32": ("float32", "float", "full", "no", "32", "32-true"),
            "fp8": ("float8",),
        },
        "optimizer.device": {"cuda": ("gpu", "nvidia"), "mps": ("metal",)},
        "optimizer.sharding": {"fsdp2": ("fsdp", "full_shard", "zero3"), "ddp": ("no_shard",)},
        "data.task": {
            "chat": ("sft", "conversation", "conversations", "messages"),
            "completion": ("instruction", "prompt_completion"),
            "preference": ("dpo", "preferences"),
            "text": ("pretraining", "pretrain", "language_modeling"),
        },
        "data.format": {"jsonl": ("jsonlines", "ndjson"), "txt": ("text", "plain", "md")},
        "data.compression": {"gz": ("gzip",), "zst": ("zstd", "zstandard"), "bz2": ("bzip2",), "xz": ("lzma",)},
    }
)


def value_of(path: tuple[str | int, ...], value: object) -> str | None:
    """Return the setting, as on the command line, that means what ``value`` at ``path`` means in other programs."""
    if not path or not isinstance(value, str | int):
        return None
    values = _VALUES.get(f"{path[0]}.{path[-1]}", {})
    given = str(value).lower()
    meant = next((ours for ours, theirs in values.items() if given in theirs or given == ours), None)
    return None if meant is None else f"{'.'.join(map(str, path))}={meant}"


def meaning_of(name: str, sections: frozenset[str]) -> str | None:
    """Return the setting with the meaning that ``name`` (dotted) has in other programs, if its section fits."""
    section, _, last = name.rpartition(".")
    setting = _BY_NAME.get(last.replace("-", "_"))
    top = section.partition(".")[0]
    return setting if setting and (top not in sections or setting.startswith(f"{top}.")) else None
