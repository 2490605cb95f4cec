"""The hardware that a model trains on, and the FLOPs that a token costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from holdfast.adapters.shared.device.peak_flops import peak_flops
from holdfast.adapters.shared.network.ranks import world_size
from holdfast.ports.optimizer import Hardware

if TYPE_CHECKING:
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel


def describe(model: CausalLanguageModel, device: str, precision: str, sequence_length: int) -> Hardware:
    """Return the hardware of this rank, with the peak FLOP/s of all ranks, for a ``model`` that is not sharded yet."""
    peak = peak_flops(device)
    return Hardware(
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        precision=precision,
        num_parameters=sum(p.numel() for p in model.parameters()),
        flops_per_token=_flops_per_token(model, sequence_length),
        peak_flops=None if peak is None else peak * world_size(),
    )


def _flops_per_token(model: CausalLanguageModel, sequence_length: int) -> float:
    """Return forward and backward FLOPs: six for each weight of matrix products, plus attention (PaLM, appendix B).

    Of the experts of a mixture only those that a token goes through count.
    """
    config = model.network.config
    num_weights = sum(p.numel() for p in model.parameters()) - _idle_weights(model)
    if not config.tie_word_embeddings:
        num_weights -= model.network.get_input_embeddings().weight.numel()
    layers = getattr(config, "num_hidden_layers", 0)
    width = getattr(config, "hidden_size", 0)
    return 6.0 * num_weights + 12.0 * layers * width * sequence_length


def _idle_weights(model: CausalLanguageModel) -> float:
    """Return the number of weights of experts that a token does not go through; 0 if that is not known."""
    config = model.network.config
    chosen = getattr(config, "num_experts_per_tok", None)
    total = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if not (isinstance(chosen, int) and isinstance(total, int) and 0 < chosen < total):
        return 0.0
    named = model.network.named_parameters()
    experts = sum(int(parameter.numel()) for name, parameter in named if "experts" in name.split("."))
    return experts * (1.0 - chosen / total)
