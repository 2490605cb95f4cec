"""The choice of attention, and the arguments that keep the documents of a packed row apart in it."""

from __future__ import annotations

from importlib.util import find_spec
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo import maybe_mark_dynamic
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

VARLEN = "varlen"
CONTEXT_PARALLEL = "context_parallel"

_TELLS_SHARING = "enable_gqa" in signature(varlen_attn).parameters
_by_lengths = {VARLEN, "flash_attention_2", "flash_attention_3", "flash_attention_4"}


def choose_attention(wanted: str, device: str, precision: str) -> tuple[str, str]:
    """Return the names of attention for ``wanted`` in order of preference, joined by commas, and why.

    ``wanted`` is auto or a name. The kernels for packed documents (flash-attn, torch's varlen) take bf16 and fp16 on
    GPUs from Ampere on. Raises ``ConfigurationError`` for a name that cannot train on ``device``.
    """
    has_flash = find_spec("flash_attn") is not None
    if wanted.startswith("flash_attention") and device != "cuda":
        msg = f"model.attention is {wanted}, which needs a CUDA GPU, but the device is {device}: use auto"
        raise ConfigurationError(msg)
    if wanted == "flash_attention_2" and not has_flash:
        msg = "model.attention is flash_attention_2, but the package flash-attn is not installed: use auto"
        raise ConfigurationError(msg)
    if wanted == "flex_attention" and device != "cuda":
        msg = f"model.attention is flex_attention, which torch cannot train on {device}: use auto"
        raise ConfigurationError(msg)
    if wanted != "auto":
        return wanted, "configured"
    if device != "cuda" or precision not in ("bf16", "fp16") or torch.cuda.get_device_capability() < (8, 0):
        return "sdpa,eager", "it runs on every device and in every precision"
    if has_flash:
        return f"flash_attention_2,{VARLEN},sdpa,eager", "flash-attn is installed"
    return f"{VARLEN},sdpa,eager", "torch's kernel for packed documents"


def register_attention(name: str, function: Callable[..., Any]) -> None:
    """Offer a function of another package as attention ``name`` to all Hugging Face models of this process.

    ``function`` is an attention function in the sense of transformers: it takes the module, query, key and value (rows,
    heads, length, width of a head), a mask and keywords (scaling, dropout, sliding_window), and returns the outputs
    (rows, length, heads, width of a head) and weights or None. Its attribute ``mask`` names the argument that separates
    documents: ``sdpa`` (the default: a bool mask (rows, 1, length, length), True where a token may look, or None for
    plain causal rows), ``eager`` (the same in floats, to be added), ``flex_attention`` (a BlockMask), or ``lengths``
    (no mask, but the keywords ``cu_seq_lens_q`` int32, the documents' ends in the flattened rows with a first 0, and
    ``max_length_q``, a row's length, which no document exceeds). Raises ``ConfigurationError`` for another mask.
    """
    mask = getattr(function, "mask", "sdpa")
    if mask == "lengths":
        _by_lengths.add(name)
        mask_function: Callable[..., Any] = _mask_of_lengths
    elif mask in ("sdpa", "eager", "flex_attention"):
        mask_function = ALL_MASK_ATTENTION_FUNCTIONS[mask]
    else:
        msg = f"attention '{name}' asks for the mask {mask!r}: there are sdpa, eager, flex_attention and lengths"
        raise ConfigurationError(msg)
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask_function)


def offer_varlen() -> None:
    """Make ``varlen`` known to transformers; a second time it changes nothing."""
    register_attention(VARLEN, varlen_attention)


def packed_arguments(network: nn.Module, position_ids: Tensor, ends: Tensor | None = None) -> dict[str, Any]:
    """Return arguments of ``network`` that keep documents apart; ``position_ids`` are int64 (rows, length).

    ``ends``, if known, are those of ``Batch.document_ends``; a GPU would have to be waited for to find them.

    By positions alone transformers' flash attention finds documents only in batches of one row, and silently mixes
    documents in larger batches; given the lengths it finds them in all batches (transformers 5.23).
    """
    arguments: dict[str, Any] = {"use_cache": False}
    parameters = signature(network.forward).parameters
    if "position_ids" in parameters or any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        arguments["position_ids"] = position_ids
    implementation = getattr(network.config, "_attn_implementation", None)
    if implementation not in _by_lengths:
        return arguments
    if implementation in (VARLEN, CONTEXT_PARALLEL) and ends is not None:
        # varlen reads no mask: transformers passes one of four dimensions on, and would otherwise look for documents
        # itself, and wait for the GPU
        arguments["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=position_ids.device)
    if ends is None:
        ends = found_ends(position_ids)
    # the kernels need only a bound: the exact length would cost a synchronization and a compilation in each step
    longest = position_ids.shape[-1]
    maybe_mark_dynamic(ends, 0)
    return arguments | {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}


def found_ends(position_ids: Tensor) -> Tensor:
    """Return the ends of the documents in the flattened rows of ``position_ids``, int32, with a first 0."""
    begins = torch.nonzero(position_ids.flatten() == 0)[:, 0]
    return torch.cat([begins, begins.new_tensor([position_ids.numel()])]).int()


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each document: torch's varlen kernel on CUDA in half precision, else one document at a time.

    ``query``, ``key`` and ``value`` are (rows, heads, length, head size), ``key`` and ``value`` possibly with fewer
    heads; ``cu_seq_lens_q`` is int32 (documents + 1,). Returns (rows, length, heads, head size), in autocast's dtype
    where that is on.

    Raises ``ValueError`` for unsupported features (soft caps, sinks, position biases, attention to later tokens).
    """
    _check_supported(module, others)
    if cu_seq_lens_q is None:  # generating: one document with a cache
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
        return output, None
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # rotated queries and keys are fp32, and autocast does not know the kernel
        query, key, value = (each.to(torch.get_autocast_dtype(kind)) for each in (query, key, value))
    flat = tuple(each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and not dropout:
        packed = _by_kernel(flat, cu_seq_lens_q, max_length_q, scaling, sliding_window)
    else:
        packed = _one_by_one(flat, cu_seq_lens_q, scaling, dropout, sliding_window)
    return packed.view(query.shape[0], query.shape[2], query.shape[1], -1), None


varlen_attention.mask = "lengths"  # type: ignore[attr-defined]


def _by_kernel(
    flat: tuple[Tensor, ...], ends: Tensor, longest: int, scaling: float | None, sliding_window: int | None
) -> Tensor:
    query, key, value = flat
    # up to torch 2.11 the kernel accepted shared heads without an option
    sharing: dict[str, Any] = {"enable_gqa": query.shape[1] != key.shape[1]} if _TELLS_SHARING else {}
    packed: Any = varlen_attn(
        query,
        key,
        value,
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        **sharing,
    )
    attended: Tensor = packed
    return attended


def _one_by_one(
    flat: tuple[Tensor, ...], ends: Tensor, scaling: float | None, dropout: float, sliding_window: int | None
) -> Tensor:
    lengths = ends.diff().tolist()
    outputs = []
    for parts in zip(*(torch.split(each, lengths) for each in flat), strict=True):
        query, key, value = (each.transpose(0, 1)[None] for each in parts)
        length = query.shape[2]
        band = _band(length, sliding_window, query.device) if sliding_window and length > sliding_window else None
        attended = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=band,
            is_causal=band is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(attended[0].transpose(0, 1))
    return torch.cat(outputs)


def _band(length: int, width: int, device: torch.device) -> Tensor:
    band = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return band.triu(1 - width)


def _mask_of_lengths(*, attention_mask: Tensor | None = None, **arguments: Any) -> Tensor | None:
    if attention_mask is None and arguments["q_length"] == arguments["kv_length"]:
        return None
    mask: Tensor | None = sdpa_mask(attention_mask=attention_mask, **arguments)
    return mask


def _check_supported(module: nn.Module, others: dict[str, Any]) -> None:
    strange = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    is_causal = others.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        strange.append("is_causal=False")
    if strange:
        msg = f"the model's attention needs {strange[0]}, which varlen does not support: set model.attention=auto"
        raise ValueError(msg)
