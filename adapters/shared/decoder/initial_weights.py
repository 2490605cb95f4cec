"""The initial weights of a new decoder."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from holdfast.adapters.shared.modeling.deferred_weights import InitialWeight
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from holdfast.adapters.shared.decoder.network import DecoderNetwork

_RESIDUAL = ("o_proj", "down_proj")


def initial_weights(
    network: DecoderNetwork, *, seed: int, scheme: str = "auto", deviation: float = 0.02
) -> Sequence[InitialWeight]:
    """Return the initial values of all weights of ``network``, from a random generator of their own.

    ``llama``: matrices and embeddings normal with ``deviation``, biases 0, norms the identity, as transformers draws a
    Llama. ``gpt2``: the same, but matrices at the end of a residual branch are divided by the root of the number of
    branches (Radford et al., 2019, section 2.3; twice the layers, as in Megatron-LM and transformers). ``auto`` is gpt2
    for learned positions, otherwise llama. Raises ``ConfigurationError`` for another scheme.
    """
    if scheme not in ("auto", "llama", "gpt2"):
        msg = f"model.initialisation is {scheme!r}: make it auto, llama or gpt2"
        raise ConfigurationError(msg)
    is_learned = network.config.shape.positions.kind == "learned"
    is_scaled = scheme == "gpt2" or (scheme == "auto" and is_learned)
    branch = deviation / math.sqrt(2 * network.config.num_hidden_layers) if is_scaled else deviation
    generator = torch.Generator().manual_seed(seed % 2**64)
    found: list[InitialWeight] = []
    for name, module in network.named_modules():
        if module is network.lm_head and network.config.tie_word_embeddings:
            continue
        normal = partial(_draw_normal, generator, branch if name.endswith(_RESIDUAL) else deviation)
        found += _of_module(name, module, normal)
    return found


def _of_module(name: str, module: nn.Module, normal: partial[None]) -> Iterator[InitialWeight]:
    is_norm = isinstance(module, (nn.RMSNorm, nn.LayerNorm))
    if not is_norm and not isinstance(module, (nn.Linear, nn.Embedding)):
        return
    for own, parameter in module.named_parameters(recurse=False):
        draw = torch.Tensor.zero_ if own == "bias" else _set_ones if is_norm else normal
        yield InitialWeight(f"{name}.{own}", parameter.numel(), draw)


def _draw_normal(generator: torch.Generator, deviation: float, values: Tensor) -> None:
    values.normal_(std=deviation, generator=generator)


def _set_ones(values: Tensor) -> None:
    values.fill_(1.0)
