"""Initial weights of a decoder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.adapters.shared.decoder.network import DecoderNetwork

_RESIDUAL = ("o_proj", "down_proj")


@torch.no_grad()
def initialise(network: DecoderNetwork, *, seed: int, scheme: str = "auto", deviation: float = 0.02) -> None:
    """Draw all weights of ``network``, in host memory, by a generator of their own.

    ``llama``: matrices and embeddings normal with ``deviation``, biases 0, norms the identity, as transformers draws
    a Llama. ``gpt2``: the same, but matrices that end a residual branch divided by the root of the number of branches
    (Radford et al., 2019, section 2.3; twice the layers, as in Megatron-LM and transformers). ``auto`` is gpt2 for
    learned positions and else llama. Raises ``ConfigurationError`` for another scheme.
    """
    if scheme not in ("auto", "llama", "gpt2"):
        msg = f"model.initialisation is {scheme!r}: make it auto, llama or gpt2"
        raise ConfigurationError(msg)
    is_learned = network.config.shape.positions.kind == "learned"
    is_scaled = scheme == "gpt2" or (scheme == "auto" and is_learned)
    branch = deviation / math.sqrt(2 * network.config.num_hidden_layers) if is_scaled else deviation
    generator = torch.Generator().manual_seed(seed % 2**64)
    for name, module in network.named_modules():
        if module is network.lm_head and network.config.tie_word_embeddings:
            continue
        _initialise_one(module, branch if name.endswith(_RESIDUAL) else deviation, generator)


def _initialise_one(module: nn.Module, deviation: float, generator: torch.Generator) -> None:
    if isinstance(module, (nn.RMSNorm, nn.LayerNorm)):
        module.reset_parameters()
    elif isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.normal_(std=deviation, generator=generator)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
