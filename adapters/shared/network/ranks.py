"""The number of this process among those that train together."""

from __future__ import annotations

import re
import time

import torch.distributed as dist
from torch import distributed

from holdfast.domain.errors import TrainingError


def rank() -> int:
    """Return the number of this process in torch's group; 0 without a group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes in torch's group; 1 without a group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first_rank() -> bool:
    """Return whether this process is rank 0, which writes the files common to all ranks."""
    return rank() == 0


COURTESY_SECONDS = 2.0  # lets the rank that failed first end first: a launcher reports the first exit code
_WAITED = re.compile(r"Timed out waiting (\d+)ms")  # of gloo
_SIGNS = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "NCCL communicator was aborted",
    "ncclRemoteError",
    "ncclSystemError",
)


def raise_if_peers_are_lost(error: BaseException) -> None:
    """Raise ``TrainingError`` if ``error`` came from a collective that another rank left, for example when killed."""
    if (sentence := sentence_on_lost_peers(error)) is not None:
        time.sleep(COURTESY_SECONDS)
        raise TrainingError(sentence) from error


def sentence_on_lost_peers(error: BaseException) -> str | None:
    """Return a sentence if ``error`` came from a collective of this process that another rank left, otherwise None."""
    if not dist.is_available() or not dist.is_initialized() or not is_of_lost_peers(error, dist.get_world_size()):
        return None
    place = f"rank {dist.get_rank()} of {dist.get_world_size()}"
    waited = _WAITED.search(str(error))
    bound = f" within {int(waited[1]) / 1000:.0f} s, torch's time limit" if waited else ""
    return f"{place} lost the other ranks in the middle of a step{bound}; look for their first error and restart"


def is_of_lost_peers(error: BaseException, num_ranks: int) -> bool:
    """Return whether one of ``num_ranks`` processes that raises ``error`` has lost the other ranks."""
    if num_ranks < 2:
        return False
    is_of_torch = isinstance(error, (dist.DistNetworkError, dist.DistStoreError))
    return is_of_torch or (isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS))
