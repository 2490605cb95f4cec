"""The peak speed of GPUs."""

from __future__ import annotations

import torch

# Dense bf16 peaks in FLOP/s from NVIDIA's data sheets. The first key that is part of a device's name counts.
_PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "4090": 165e12,
    "3090": 71e12,
}


def peak_flops(device: str) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s, None if it is not known."""
    if device != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for model, peak in _PEAKS.items() if model in name), None)
