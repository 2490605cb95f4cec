"""Torch's seed and deterministic kernels, set for a run and restored after it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import deterministic as _deterministic

if TYPE_CHECKING:
    from collections.abc import Iterator

_fresh_memory: Any = _deterministic  # a module with a property, which type checkers do not see


@contextmanager
def torch_state_preserved(*, deterministic: bool) -> Iterator[None]:
    """Let the block seed torch and, if ``deterministic``, run deterministic kernels; then restore torch's state.

    On a CPU eager torch is deterministic anyway. On a GPU this makes two runs equal, at some cost in speed. Torch's
    default of filling newly allocated memory is off: it finds reads of uninitialized memory, and took 5 % of a step
    on a CPU.
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
