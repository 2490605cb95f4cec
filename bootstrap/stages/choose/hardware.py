"""Resolves the ``auto`` settings of device, precision and attention on this machine."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.host_memory import allowed_cpus, usable_cpus
from holdfast.bootstrap.adapter_choice.lazy import lazy, telling_broken_library
from holdfast.bootstrap.adapter_choice.plugins import load_plugin
from holdfast.configs.ready_configurations import find_file
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.domain.built_in import ATTENTION
from holdfast.domain.resources.balance_policy import SPIN_COUNT, Spinning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.memory_fit import MemoryCapacity
    from holdfast.ports.state_store import StateStore


def choose_hardware(settings: TrainSettings, keep_choice: Callable[[str, str, str], str]) -> dict[str, str]:
    """Return device, precision and kinds of attention for torch.

    ``keep_choice(name, value, reason)`` returns the choice of an earlier start, or ``value``. The device is chosen at
    each start, because a run may move to another machine. The precision is chosen once, because it affects the results.
    """
    optimizer = settings.optimizer
    if not isinstance(optimizer, TorchOptimizerSettings):
        return {}
    device, _ = lazy("holdfast.adapters.shared.device.device_selection:choose_device")(optimizer.device)
    precision, reason = lazy("holdfast.adapters.shared.device.device_selection:choose_precision")(
        optimizer.precision, device
    )
    if optimizer.precision == "auto" and (file := optimizer.config) is not None:
        path = str(find_file(Path(file)))
        if lazy("holdfast.adapters.optimizer.deepspeed_config:asks_for_bf16")(path):
            precision, reason = "bf16", f"{file} turns it on"
    if optimizer.precision == "auto":
        precision = keep_choice("optimizer.precision", precision, reason)
    with telling_broken_library():
        from holdfast.adapters.shared.modeling.attention import choose_attention, register_attention

    attention = settings.model.attention
    if attention not in ("auto", *ATTENTION):
        register_attention(attention, load_plugin("attention", attention, built_in=ATTENTION))
    attention, _ = choose_attention(attention, device, "bf16" if precision == "fp8" else precision)
    return {"optimizer.device": device, "optimizer.precision": precision, "model.attention": attention}


def torch_state(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Return a context that restores torch's process-wide state at its end, if the run uses torch."""
    if not isinstance(settings.optimizer, TorchOptimizerSettings):
        return nullcontext()
    context: AbstractContextManager[Any] = lazy("holdfast.adapters.shared.device.openmp:torch_state_preserved")(
        deterministic=settings.run.deterministic
    )
    return context


def gpu_of(chosen: Mapping[str, str]) -> str | None:
    """Return the driver's number or UUID of the first GPU that this process sees, None without a GPU."""
    if not chosen.get("optimizer.device", "cpu").startswith("cuda"):
        return None
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",")] if visible else []
    return names[rank] if rank < len(names) else str(rank)


@contextmanager
def threads_of_processor(device: str | None, store: StateStore) -> Iterator[None]:
    """Within the block, give a run on the CPU the threads that it may use, and have them yield to other processes."""
    with ExitStack() as stack:
        if device == "cpu":
            recorded = ""
            if usable_cpus() < allowed_cpus() and (stored := store.list()):
                recorded = stored[-1].conditions.get("threads", "")
            stack.enter_context(lazy("holdfast.adapters.shared.device.openmp:threads_of_run")(recorded))
            if os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT) == SPIN_COUNT and "OMP_WAIT_POLICY" not in os.environ:
                stack.enter_context(lazy("holdfast.adapters.shared.device.openmp:spinning_by_load")(Spinning()))
        yield


def memory_limit(device: str | None) -> Callable[[], Mapping[str, float]]:
    """Return a function that returns the metric ``memory_limit_bytes``: the memory of the GPU, or of this process.

    ``device`` is that of the optimizer; only ``cuda`` has memory of its own here. The limit is read once.
    """
    figures = {"memory_limit_bytes": memory_limit_of(device)}
    return lambda: figures


def memory_limit_of(device: str | None) -> int:
    """Return the bytes of memory that a rank may use: the GPU's on ``cuda``, else the tightest limit of the process.

    That is the smallest of the machine, the control group and the resource limits.
    """
    if device is not None and device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    room: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_gauge:host_room")(
        int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    )
    return int(room.num_bytes)
