"""Which device, precision and memory there is."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils import deterministic as _deterministic

from holdfast.adapters.shared.device.host_memory import give_back_freed
from holdfast.adapters.shared.network.lost_ranks import raise_if_peers_are_lost
from holdfast.domain.errors import ConfigurationError, OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_COMPUTED = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_COMPUTED |= dict.fromkeys(("fp8", "fp8_emulated"), torch.bfloat16)  # what is not multiplied in 8 bits
_FLOAT8_CAPABILITY = (8, 9)  # Ada, and all from Hopper on

_fresh_memory: Any = _deterministic  # a module with a property, which type checkers do not see

_SHORTAGES = (
    "DefaultCPUAllocator",  # torch's allocator on the host
    "could not create a primitive",  # oneDNN, in bf16 on the host
    "could not create a memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "out of memory",
    "Cannot allocate memory",
    "std::bad_alloc",
)

# Dense bf16 peaks in FLOP/s, from NVIDIA's data sheets; the first name that a device's name holds counts.
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


def choose_device(wanted: str) -> tuple[str, str]:
    """Return the device type for ``wanted`` (auto, cpu, cuda, mps) and why; raises ``ConfigurationError``."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        chosen = next(kind for kind, is_there in available.items() if is_there)
        return chosen, "the best that is there" if chosen != "cpu" else "no GPU is there"
    if not available[wanted]:
        msg = f"optimizer.device is {wanted}, but this machine and this torch have none: use auto"
        raise ConfigurationError(msg)
    return wanted, "configured"


def choose_precision(wanted: str, device: str) -> tuple[str, str]:
    """Return the precision for ``wanted`` (auto or a name) on ``device``, and why; auto is fp32 or bf16.

    On a CPU bf16 is chosen where it multiplies such numbers itself, by matrix tiles (AMX) or dot products (AVX-512
    BF16): docs/benchmarks.md. Raises ``ConfigurationError`` for fp8 on a device without it.
    """
    if wanted == "fp8" and (device != "cuda" or torch.cuda.get_device_capability() < _FLOAT8_CAPABILITY):
        name = torch.cuda.get_device_name() if device == "cuda" else device
        msg = (
            "optimizer.precision is fp8, which takes an NVIDIA GPU of compute capability 8.9 or later (Ada, Hopper), "
            f"and this is {name}: set optimizer.precision=auto"
        )
        raise ConfigurationError(msg)
    if wanted != "auto":
        return wanted, "configured"
    if device == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the GPU has it"
        return "fp32", "the GPU has no bf16"
    if device == "cpu" and torch.cpu._is_amx_tile_supported():  # noqa: SLF001  torch has no public name for it
        return "bf16", "the CPU has AMX"
    if device == "cpu" and torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001  nor for that
        return "bf16", "the CPU has AVX-512 BF16"
    return "fp32", "bf16 would not be faster here"


def computed_dtype(precision: str) -> torch.dtype:
    """Return the format that numbers are cast to for matrix products."""
    return _COMPUTED[precision]


def peak_flops(device: str) -> float | None:
    """Return the device's dense bf16 peak in FLOP/s, None if it is not known."""
    if device != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for model, peak in _PEAKS.items() if model in name), None)


def memory_bytes(device: str) -> int:
    """Return the GPU's peak allocation, or the process's peak resident size where there is no GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def memory_retries(device: str) -> int:
    """Return how often torch's allocator had to give memory back to the GPU before it got what it asked for."""
    return int(torch.cuda.memory_stats_as_nested_dict()["num_alloc_retries"]) if device == "cuda" else 0


def within_memory(device: str, work: Callable[..., T], *arguments: Any) -> T:
    """Return ``work(*arguments)``, turning every library's way of saying out-of-memory into ``OutOfMemory``.

    It is raised once the library's error is gone: the frames in that error's traceback hold the tensors that must be
    freed. A context manager could not do that, as its own frame would keep the error. If another rank is gone, that is
    raised as ``TrainingError``.
    """
    try:
        return work(*arguments)
    except (RuntimeError, MemoryError) as error:
        message = str(error).strip().split("\n", 1)[0]
        is_shortage = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
            sign in str(error) for sign in _SHORTAGES
        )
        if not is_shortage:
            raise_if_peers_are_lost(error)
            raise
    if device == "cuda":
        torch.cuda.empty_cache()
    else:
        give_back_freed()
    raise OutOfMemory(message or "memory is exhausted")


@contextmanager
def torch_state_preserved(*, deterministic: bool) -> Iterator[None]:
    """Within the block a run may seed torch and, if ``deterministic``, gets repeatable kernels; then all is as before.

    On CPU eager torch repeats itself as it is; on a GPU this is what makes two runs equal, at some cost in speed.
    Memory that was just allocated is not filled, as it is by torch's default then: that finds operations that read what
    nobody wrote, and took 5 % of a step on a CPU.
    """
    was_filling = _fresh_memory.fill_uninitialized_memory
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with a fixed workspace
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(deterministic or was_deterministic, warn_only=True)
        _fresh_memory.fill_uninitialized_memory = was_deterministic and was_filling
        try:
            yield
        finally:
            _fresh_memory.fill_uninitialized_memory = was_filling
            torch.use_deterministic_algorithms(was_deterministic, warn_only=was_warning)
