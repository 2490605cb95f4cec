"""The environment variables that libraries read when they are imported."""

from __future__ import annotations

import ctypes
import os

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.domain.resources.spin_policy import SPIN_COUNT

_DEFAULTS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    # How often a thread of libgomp looks at a barrier before it sleeps: on quiet cores it never has to. Its default,
    # 300,000, is the worst while others work: it sleeps after it has spent its turn, and then waits for theirs to end.
    # A run looks at that and has threads sleep at once (adapters/shared/device/openmp.py).
    "GOMP_SPINCOUNT": SPIN_COUNT,
    # Large tensors of the CPU in pages of 2 MiB where the system leaves that to programs: what a checkpoint copies is
    # mapped sooner, and copied faster.
    "THP_MEM_ALLOC_ENABLE": "1",
}

# of glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_KEPT = 256 << 20


def set_library_defaults() -> None:
    """Set what the user has not set; only the command line calls this: an embedding host keeps its own environment."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if "MALLOC_ARENA_MAX" not in os.environ:
        # glibc gives threads eight heaps a core, each of which keeps what it once held: memory that creeps for hours
        mallopt(_M_ARENA_MAX, max(2, usable_cpus()))
    if {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        return
    # else the tensors of a step on a CPU go back to the system, which maps and clears them again at the next; glibc
    # below 2.35 takes no more than 32 MiB, and setting the second alone would make it worse
    if mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) or mallopt(_M_MMAP_THRESHOLD, 32 << 20):
        mallopt(_M_TRIM_THRESHOLD, 4 * _LARGEST_KEPT)
