"""What libraries read from the environment when they are imported."""

from __future__ import annotations

import ctypes
import os

_DEFAULTS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    # How long a thread of libgomp spins at a barrier before it sleeps. With its default a step on two cores takes
    # several times as long while another process keeps one of them busy; on quiet cores this changes nothing.
    "GOMP_SPINCOUNT": "10000000",
}

_M_ARENA_MAX = -8  # of glibc's malloc.h


def set_library_defaults() -> None:
    """Set what the user has not set; only the command line calls this: an embedding host keeps its own environment."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if "MALLOC_ARENA_MAX" not in os.environ:
        _limit_arenas()


def _limit_arenas() -> None:
    # glibc gives threads eight heaps a core, each of which keeps what it once held: memory that creeps for hours
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, max(2, os.cpu_count() or 1))
