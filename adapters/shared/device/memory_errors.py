"""Out-of-memory errors of torch and its libraries as one exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from holdfast.adapters.shared.device.host_memory import give_back_freed
from holdfast.adapters.shared.network.ranks import raise_if_peers_are_lost
from holdfast.domain.errors import OutOfMemory

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_OUT_OF_MEMORY = (
    "DefaultCPUAllocator",  # torch's allocator on the host
    "could not create a primitive",  # oneDNN, in bf16 on the host
    "could not create a memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "out of memory",
    "Cannot allocate memory",
    "std::bad_alloc",
)


def within_memory(device: str, work: Callable[..., T], *arguments: Any) -> T:
    """Return ``work(*arguments)``; raise ``OutOfMemory`` for every library's out-of-memory error.

    It is raised after the library's error is released, because the frames in that error's traceback hold the tensors
    that must be freed. A context manager cannot do that: its own frame would hold the error. Raises ``TrainingError``
    if a collective failed because another rank is gone.
    """
    try:
        return work(*arguments)
    except (RuntimeError, MemoryError) as error:
        shortage = _out_of_memory(error)
        if shortage is None:
            raise_if_peers_are_lost(error)
            raise
        message = str(shortage).strip().split("\n", 1)[0]
        del shortage
    if device == "cuda":
        torch.cuda.empty_cache()
    else:
        give_back_freed()
    raise OutOfMemory(message or "memory is exhausted")


def _out_of_memory(error: BaseException | None) -> BaseException | None:
    """Return the out-of-memory error among ``error`` and its causes, None if there is none.

    A stage of torch.distributed.pipelining raises its errors as the cause of one that does not quote them.
    """
    while error is not None:
        is_by_type = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if is_by_type or any(sign in str(error) for sign in _OUT_OF_MEMORY):
            return error
        error = error.__cause__
    return None
