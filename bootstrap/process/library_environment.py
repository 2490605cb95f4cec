"""The environment variables that libraries read when they are imported."""

from __future__ import annotations

import ctypes
import logging
import os

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.domain.resources.balance_policy import SPIN_COUNT

_DEFAULTS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    # The number of times that a thread of libgomp polls a barrier before it sleeps: on idle cores it never sleeps. The
    # default, 300,000, is the worst value while other processes work: the thread sleeps after its time slice is spent,
    # and then waits for their time slices. A run detects this and makes threads sleep at once
    # (adapters/shared/device/openmp.py).
    "GOMP_SPINCOUNT": SPIN_COUNT,
    # Large CPU tensors use pages of 2 MiB where the system leaves that choice to programs: the copies for a checkpoint
    # are mapped and copied faster.
    "THP_MEM_ALLOC_ENABLE": "1",
}

# of glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_KEPT = 256 << 20
_HEAPS_OF_OTHER_THREADS = 8  # than those that compute


def set_library_defaults() -> None:
    """Set the variables that are not set; only the command line calls this, as a host keeps its own environment."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # transformers imports torchao where it is installed, which prints the kernels that this machine has not
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if "MALLOC_ARENA_MAX" not in os.environ:
        # glibc gives threads eight heaps for each core, and each keeps freed memory: the use of memory grows for hours.
        # With fewer heaps than these, a thread that computes shares one with the main thread, and both wait for its
        # lock: the steps of a small model on a CPU take up to twice as long.
        mallopt(_M_ARENA_MAX, usable_cpus() + _HEAPS_OF_OTHER_THREADS)
    if {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        return
    # otherwise the memory of a step's CPU tensors returns to the system, which maps and clears it again at the next
    # step; glibc before 2.35 accepts at most 32 MiB, and the second value alone would make it worse
    if mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT) or mallopt(_M_MMAP_THRESHOLD, 32 << 20):
        mallopt(_M_TRIM_THRESHOLD, 4 * _LARGEST_KEPT)
