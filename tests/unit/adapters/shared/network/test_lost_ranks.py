"""What torch raises when another rank is gone."""

import pytest
import torch
import torch.distributed as dist

from holdfast.adapters.shared.network import ranks as peers
from holdfast.adapters.shared.network.ranks import is_of_lost_peers
from holdfast.bootstrap.process.exit_codes import guarded
from holdfast.domain.errors import TrainingError

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:36736: Connection reset by peer"


def test_a_peer_that_is_gone_is_one_sentence_wherever_a_collective_is(monkeypatch, capsys):
    """A command whose collective fails outside of a step too ends with a sentence, without a traceback."""
    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": 1}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)

    def command():
        raise RuntimeError(GLOO)

    assert guarded(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: rank 1 of 2 lost the other ranks")


def test_the_longest_wait_of_a_step_is_told(monkeypatch):
    """What ends because torch waited as long as it does says how long that was."""
    for name, value in {"is_initialized": True, "get_world_size": 2, "get_rank": 0}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(peers, "COURTESY_SECONDS", 0)
    with pytest.raises(TrainingError, match="in the middle of a step within 1800 s, torch's time limit; look"):
        peers.raise_if_peers_are_lost(RuntimeError("gloo/transport: Timed out waiting 1800000ms for recv"))


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
