import torch
from torch.utils import deterministic as deterministic_memory

from adapters.shared.device import torch_state_preserved


def test_repeatable_kernels_fill_no_fresh_memory():
    """Within a deterministic run fresh tensors are not written, which would only cost time; then all is as before."""
    before = deterministic_memory.fill_uninitialized_memory, torch.are_deterministic_algorithms_enabled()
    with torch_state_preserved(deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()
        with torch.profiler.profile() as profile:
            torch.empty(1000)
        assert "aten::fill_" not in {event.key for event in profile.key_averages()}
    assert (deterministic_memory.fill_uninitialized_memory, torch.are_deterministic_algorithms_enabled()) == before


def test_a_host_that_wants_its_memory_filled_keeps_that():
    """Where the host itself is deterministic, its choice about fresh memory stands."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        with torch_state_preserved(deterministic=True):
            assert deterministic_memory.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(mode=False)
