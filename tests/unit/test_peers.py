"""What torch raises when another rank is gone."""

import pytest
import torch
import torch.distributed as dist

from adapters.shared.peers import is_of_lost_peers

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:36736: Connection reset by peer"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError(GLOO), True),
        (RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"), True),
        (
            dist.DistBackendError("NCCL error: remote process exited or there was a network error: ncclRemoteError"),
            True,
        ),
        (dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (ValueError("gloo/transport"), False),
    ],
)
def test_a_peer_that_is_gone_is_told_from_an_error_of_our_own(error, is_lost):
    """Only errors of a collective mean that another rank is gone, and only where there is another one."""
    assert is_of_lost_peers(error, 2) is is_lost
    assert not is_of_lost_peers(error, 1)
