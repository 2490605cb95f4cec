"""Linear layers with 4-bit weights: nf4 of bitsandbytes, on CUDA and CPU."""

from __future__ import annotations

from typing import Any, final

import torch
from bitsandbytes.autograd._functions import matmul_4bit
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn.modules import Linear4bit, Params4bit
from torch import Tensor, nn
from typing_extensions import override


@final
class FrozenLinear4bit(Linear4bit):
    """A layer whose weights and bias never change, bit for bit.

    The layer of bitsandbytes rounds the bias to the dtype it last computed in, and on some CPUs repacks the weights.
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for ``x``, in its dtype, computed in autocast's dtype where that is on."""
        weight: Any = self.weight
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        product: Tensor = matmul_4bit(x.to(dtype), weight, quant_state=weight.quant_state)
        return (product if self.bias is None else product + self.bias).to(x.dtype)


def quantized(layer: nn.Linear) -> FrozenLinear4bit:
    """Return ``layer`` in nf4 with its scales quantized too, on its device."""
    has_bias = layer.bias is not None
    make: Any = FrozenLinear4bit  # whose constructor is not typed
    with torch.device("meta"):
        made = make(layer.in_features, layer.out_features, bias=has_bias, quant_type="nf4")
    made.weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=made)
    made.bias = layer.bias
    device = layer.weight.device
    made.weight = made.weight.to(device)  # this move quantizes
    result: FrozenLinear4bit = made.train(layer.training)
    return result


def dequantized(layer: FrozenLinear4bit) -> nn.Linear:
    """Return the plain fp32 layer that computes the same as ``layer``."""
    packed: Any = layer.weight
    weight = dequantize_4bit(packed.data, packed.quant_state).float()
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(weight)
    plain.bias = layer.bias
    return plain
