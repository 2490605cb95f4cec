import pytest
import torch
from torch.utils import deterministic as deterministic_memory

from holdfast.adapters.shared.device.device_selection import choose_device, choose_precision
from holdfast.adapters.shared.device.memory_errors import within_memory
from holdfast.adapters.shared.device.openmp import torch_state_preserved
from holdfast.adapters.shared.device.peak_flops import peak_flops
from holdfast.domain.errors import ConfigurationError, OutOfMemory


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


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("could not create a primitive"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_every_library_s_shortage_is_one_error(error):
    """Whatever a library says for want of memory becomes ``OutOfMemory`` in one line, without the library's error."""

    def work():
        raise error

    with pytest.raises(OutOfMemory) as raised:
        within_memory("cpu", work)
    assert str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__context__ is None


def test_an_error_that_has_a_shortage_as_its_cause_is_a_shortage():
    """The stages of a pipeline raise an error of their own, of which the shortage is the cause."""

    def work():
        msg = "[Stage 0] failed to run forward"
        raise RuntimeError(msg) from torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(OutOfMemory, match="Tried to allocate") as raised:
        within_memory("cpu", work)
    assert raised.value.__context__ is None


def test_a_shortage_on_the_host_gives_back_what_was_freed(monkeypatch):
    """What the failed work has freed is given back, before it is tried again with fewer rows."""
    given = []
    monkeypatch.setattr("holdfast.adapters.shared.device.memory_errors.give_back_freed", lambda: given.append(True))

    def work():
        raise MemoryError

    with pytest.raises(OutOfMemory):
        within_memory("cpu", work)
    assert given == [True]


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("out of memory"), KeyError("a")])
def test_other_errors_are_no_shortage(error):
    """A bug stays what it is: it must not be tried again with fewer rows."""

    def work():
        raise error

    with pytest.raises(type(error)) as raised:
        within_memory("cpu", work)
    assert raised.value is error


def test_work_within_memory_returns_what_it_computes():
    """Nothing but a shortage changes what the work does."""
    assert within_memory("cpu", divmod, 7, 3) == (2, 1)


def test_a_device_that_is_missing_is_refused():
    """A configured device must be there, and auto takes one that is."""
    assert choose_device("cpu")[0] == "cpu"
    assert choose_device("auto")[0] in ("cpu", "cuda", "mps")
    missing = [kind for kind, module in (("cuda", torch.cuda), ("mps", torch.mps)) if not module.is_available()]
    for kind in missing:
        with pytest.raises(ConfigurationError, match=f"device is {kind}"):
            choose_device(kind)


def test_the_precision_is_what_was_asked_for_or_says_why():
    """A configured precision is taken as it is, and auto gives a reason."""
    assert choose_precision("bf16", "cpu") == ("bf16", "configured")
    precision, reason = choose_precision("auto", "cpu")
    assert precision in ("fp32", "bf16")
    assert "CPU" in reason or "here" in reason


@pytest.mark.parametrize(
    ("tiles", "dots", "precision"), [(True, True, "bf16"), (False, True, "bf16"), (False, False, "fp32")]
)
def test_bf16_is_chosen_on_a_cpu_that_multiplies_it(tiles, dots, precision, monkeypatch):
    """Matrix tiles or dot products of bf16 numbers are enough; where there are neither, training is in fp32."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: dots)
    assert choose_precision("auto", "cpu")[0] == precision


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA L40", 181e12), ("NVIDIA L4", 121e12), ("NVIDIA H100 PCIe", 756e12), ("Any Other", None)]
)
def test_the_peak_is_that_of_the_device(name, peak, monkeypatch):
    """A device whose name begins like another's has its own peak, and one that nobody knows has none."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert peak_flops("cuda") == peak
