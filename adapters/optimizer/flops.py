"""The hardware that a model trains on, and the FLOPs that a token costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.adapters.shared.decoder.network import DecoderNetwork
from holdfast.adapters.shared.device.peak_flops import peak_flops
from holdfast.adapters.shared.network.ranks import world_size
from holdfast.ports.optimizer import Hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel

_COUNTED = (
    "afmoe apertus arcee aria_text axk1 biogpt bitnet bloom codegen cohere cohere2 cohere2_moe ctrl cwm deepseek_v3 "
    "ernie4_5 ernie4_5_moe exaone exaone4 exaone_moe falcon flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe "
    "glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_oss gptj granite granite_swa granitemoe granitemoe_swa "
    "granitemoeshared helium hyperclovax internlm3 jais2 jetmoe llama minicpm3 minimax_m2 ministral3 mistral mixtral "
    "mpt nanochat nemotron olmo olmo2 olmo3 olmoe openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 "
    "qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma xglm youtu"
)
COUNTED = frozenset(_COUNTED.split())
"""The types of transformers whose count torch's counter confirms; others may loop over layers, scan or convolve."""
_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k")


def describe(model: CausalLanguageModel, device: str, precision: str, sequence_length: int) -> Hardware:
    """Return the hardware of this rank, with the peak FLOP/s of all ranks, for a ``model`` that is not sharded yet."""
    peak = peak_flops(device)
    return Hardware(
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        precision=precision,
        num_parameters=sum(p.numel() for p in model.parameters()),
        flops_per_token=flops_per_token(model.network, sequence_length),
        peak_flops=None if peak is None else peak * world_size(),
    )


def flops_per_token(network: Any, sequence_length: int) -> float | None:
    """Return forward and backward FLOPs of a token in a row of ``sequence_length``, None for an unknown architecture.

    They are those of matrix products: two for each weight forward, two for the gradient of the input, two for that of
    the weight if it is trained, and attention to all keys of the row or of the window (PaLM, appendix B). Of a mixture
    only the experts that a token goes through count. Layers that are computed again do not count twice.
    """
    config: Any = network.config
    if not isinstance(network, DecoderNetwork):
        is_known = type(network).__module__.startswith("transformers.models.")
        if not is_known or config.model_type not in COUNTED or len(_keys(config, 1)) != config.num_hidden_layers:
            return None
    size = int(config.num_attention_heads) * _head_sizes(network)
    attention = sum(6.0 * size * keys for keys in _keys(config, sequence_length))
    return attention + sum((6.0 if is_trained else 4.0) * number for number, is_trained in _weights(network))


def _weights(network: Any) -> Iterator[tuple[float, bool]]:
    """Yield the number of weights of each matrix that a token is multiplied by, and whether they are trained."""
    for module in network.modules():
        if isinstance(module, nn.Linear):  # of which packed weights have another shape
            yield module.in_features * module.out_features, module.weight.requires_grad
        elif not isinstance(module, nn.Embedding):
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 3:
                    yield parameter.numel() * _share_of_experts(network.config, len(parameter)), parameter.requires_grad
                elif name == "weight" and parameter.dim() == 2:
                    yield parameter.numel(), parameter.requires_grad


def _share_of_experts(config: Any, total: int) -> float:
    chosen = next(number for name in _CHOSEN if (number := getattr(config, name, None)))
    return min(1.0, float(chosen) / total)


def _head_sizes(network: Any) -> int:
    """Return the sum of the sizes of a key and of a value of one head."""
    config = network.config
    if isinstance(network, DecoderNetwork):
        return 2 * int(config.shape.attention.head_size)
    if getattr(config, "kv_lora_rank", None):  # latent attention
        return int(config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(size)


def _keys(config: Any, sequence_length: int) -> list[int]:
    """Return the number of keys that a query of each layer sees, without layers of another kind than attention."""
    window = getattr(config, "sliding_window", None) or sequence_length
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    keys = {"full_attention": sequence_length, "sliding_attention": min(sequence_length, window)}
    return [keys[kind] for kind in kinds if kind in keys]
