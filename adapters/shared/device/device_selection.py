"""The choice of device and precision, and the number formats that precisions compute in."""

from __future__ import annotations

import torch

from holdfast.domain.errors import ConfigurationError

_COMPUTED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_COMPUTED["fp8"] = torch.bfloat16  # products that are not in 8 bits
_FLOAT8_CAPABILITY = (8, 9)  # Ada, and all from Hopper on


def choose_device(wanted: str) -> tuple[str, str]:
    """Return the device type for ``wanted`` (auto, cpu, cuda, mps) and the reason.

    Raises ``ConfigurationError`` if this machine or this torch has no such device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        chosen = next(kind for kind, is_there in available.items() if is_there)
        return chosen, "the best device available" if chosen != "cpu" else "no GPU is available"
    if not available[wanted]:
        msg = f"optimizer.device is {wanted}, but this machine and this torch have none: use auto"
        raise ConfigurationError(msg)
    return wanted, "configured"


def choose_precision(wanted: str, device: str) -> tuple[str, str]:
    """Return the precision for ``wanted`` (auto or a name) on ``device``, and the reason; auto is fp32 or bf16.

    On a CPU bf16 is chosen if the CPU has instructions for it, matrix tiles (AMX) or dot products (AVX-512 BF16):
    docs/benchmarks.md. Raises ``ConfigurationError`` for fp8 on a device without it.
    """
    if wanted == "fp8" and (device != "cuda" or torch.cuda.get_device_capability() < _FLOAT8_CAPABILITY):
        name = torch.cuda.get_device_name() if device == "cuda" else device
        msg = (
            "optimizer.precision is fp8, which needs an NVIDIA GPU of compute capability 8.9 or later (Ada, Hopper), "
            f"and this is {name}: set optimizer.precision=auto"
        )
        raise ConfigurationError(msg)
    if wanted != "auto":
        return wanted, "configured"
    if device == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the GPU supports it"
        return "fp32", "the GPU has no bf16"
    if device == "cpu" and torch.cpu._is_amx_tile_supported():  # noqa: SLF001  torch has no public name for it
        return "bf16", "the CPU has AMX"
    if device == "cpu" and torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001  nor for that
        return "bf16", "the CPU has AVX-512 BF16"
    return "fp32", "bf16 would not be faster here"


def computed_dtype(precision: str) -> torch.dtype:
    """Return the dtype that operands of matrix products are cast to under ``precision``."""
    return _COMPUTED[precision]
