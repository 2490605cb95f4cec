"""Resolves the ``auto`` settings of device, precision and attention on this machine."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.broken_library import telling_broken_library
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.plugins import load_plugin
from holdfast.configs.ready_configurations import find_file
from holdfast.configs.sections.layers import BUDGET
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.domain.built_in import ATTENTION
from holdfast.domain.sizes import size_in_bytes
from holdfast.domain.training.checkpoint_budget import CheckpointBudget
from holdfast.domain.training.memory_estimate import EngineSetup, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.resource_probe import ResourceProbe


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


def checkpointing(settings: TrainSettings, precision: str) -> str | CheckpointBudget:
    """Return the layers of the model to recompute: a policy, or the budget from which the choice follows."""
    policy: str = settings.model.gradient_checkpointing
    if not policy.startswith(BUDGET):
        return policy
    optimizer, packing = settings.optimizer, settings.data.packing
    whole = -(-optimizer.num_rows // int(os.environ.get("WORLD_SIZE", "1")))
    training = Training(
        rows=min(optimizer.fixed_micro_batch or whole, whole),
        length=settings.data.row_length,
        engine=EngineSetup("zero" if optimizer.kind == "deepspeed" else "single"),
        precision="fp32" if precision == "fp32" else "bf16",  # others keep as many bytes
        is_masked=packing.kind != "sliding" or packing.stride != settings.data.row_length,
    )
    return CheckpointBudget(size_in_bytes(policy.removeprefix(BUDGET)), training)


def torch_state(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Return a context that restores torch's process-wide state at its end, if the run uses torch."""
    if not isinstance(settings.optimizer, TorchOptimizerSettings):
        return nullcontext()
    context: AbstractContextManager[Any] = lazy("holdfast.adapters.shared.device.determinism:torch_state_preserved")(
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


def probe_of(probe: Callable[[], ResourceProbe], rank: int, *, is_wanted: bool) -> ResourceProbe | None:
    """Return the probe of the machine's resources on the first rank if ``is_wanted``, else None."""
    return probe() if is_wanted and rank == 0 else None
