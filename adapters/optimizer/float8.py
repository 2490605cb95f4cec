"""Matrix products in 8 bits (torchao), for GPUs that support them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from torch import nn

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel

_ALIGNMENT = 16  # of all sizes in a product, as the hardware requires
_SMALL_INPUT, _SMALL_OUTPUT = 4096, 1024  # torchao's documentation: no more than this on both sides is slower in 8 bits


def use_float8(model: CausalLanguageModel, *, sequence_length: int, emulate: bool = False) -> None:
    """Make the large linear layers of ``model``, except its head, multiply in 8 bits; parameters and names stay.

    Each tensor is scaled as a whole, by its largest absolute value at that moment. ``emulate`` computes the same on any
    hardware, in layers of any size. Raises ``ConfigurationError`` if torchao is missing, the model has adapters, or no
    layer is large enough to gain.
    """
    if model.adapters is not None:
        msg = "optimizer.precision is fp8, but model.lora keeps the large layers frozen: set optimizer.precision=bf16"
        raise ConfigurationError(msg)
    try:
        torchao = import_module("torchao.float8")
    except ImportError as error:
        msg = (
            'optimizer.precision is fp8, which needs another package: pip install "holdfast-lm[fp8]", or set '
            "optimizer.precision=bf16"
        )
        raise ConfigurationError(msg) from error
    head = model.network.get_output_embeddings()
    chosen = {
        name
        for name, module in model.network.named_modules()
        if type(module) is nn.Linear and module is not head and _gains(module, emulate=emulate)
    }
    if not chosen:
        msg = (
            f"optimizer.precision is fp8, but no linear layer of {type(model.network).__name__} is large enough to "
            "gain by it: set optimizer.precision=bf16"
        )
        raise ConfigurationError(msg)
    pads = sequence_length % _ALIGNMENT != 0  # tokens are a side of the weight's gradient
    config = torchao.Float8LinearConfig(emulate=emulate, pad_inner_dim=pads)
    torchao.convert_to_float8_training(model.network, module_filter_fn=lambda _, name: name in chosen, config=config)


def _gains(layer: nn.Linear, *, emulate: bool) -> bool:
    is_aligned = layer.in_features % _ALIGNMENT == layer.out_features % _ALIGNMENT == 0
    is_small = layer.in_features <= _SMALL_INPUT and layer.out_features <= _SMALL_OUTPUT
    return is_aligned and (emulate or not is_small)
