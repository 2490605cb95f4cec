"""A check before training whether a model fits into memory, with proposals that would fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_estimate import FP32, Training, estimate_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.domain.training.memory_estimate import ModelShape

_OF_8_BITS = 2  # bytes of two moments
_OF_4_BITS = 0.5
_MARGIN = 1.1  # for the activations of a model of unknown shape
_MOST_PROCESSES = 4096
_PROCESS_BYTES = 0.4e9  # of Python, torch and their buffers beside the model


@dataclass(frozen=True, slots=True)
class MemoryCapacity:
    """The number of bytes that one process may use, and a clause that says how many and where."""

    num_bytes: float
    words: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The choices that determine the minimum memory of weights, gradients and optimizer state.

    ``optimizer_bytes`` is the optimizer state in bytes a parameter; ``weight_bytes`` are those of a weight, with its
    average if one is kept. ``is_on_host`` puts all three into host memory, else they are on a GPU. ``num_parts``
    processes share them. ``trains_all`` is false with adapters. ``only_built`` counts the memory for building the model
    alone, where another engine manages that for training.
    """

    optimizer_bytes: float = 8
    is_on_host: bool = True
    num_parts: int = 1
    trains_all: bool = True
    loads_weights: bool = False
    weight_bytes: float = FP32
    may_keep_8_bits: bool = False
    only_built: bool = False

    @property
    def state_bytes(self) -> float:
        """Return the bytes a parameter that one process stores for training."""
        trained = FP32 + self.optimizer_bytes if self.trains_all else 0
        return (self.weight_bytes + trained) / self.num_parts


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A model of at least ``num_parameters``, its shape if known, and the ``length`` of its rows in tokens."""

    num_parameters: int
    shape: ModelShape | None = None
    length: int = 512


def refusal(
    model: SizedModel,
    plan: MemoryPlan,
    host: MemoryCapacity,
    gpu: MemoryCapacity | None = None,
    *,
    is_begun: bool = False,
) -> str | None:
    """Return a sentence on why ``plan`` cannot train ``model`` and which settings would fit; None if it may fit.

    With ``is_begun`` a run has begun, which keeps its algorithm and gets no adapters.

    Only the certain minimum is counted: its weights in fp32 while it is built, and with ``plan`` weights, gradients
    and optimizer state. So a model that fits is never refused, but one that is not refused may still be too large.
    """
    size = model.num_parameters
    if (problem := _problem(size, plan, host, gpu)) is None:
        return None
    clause = f"the model has at least {_counted(size)} parameters, and {problem}"
    if is_begun:
        plan = replace(plan, may_keep_8_bits=False, loads_weights=False)
    fitting = list(_remedies(model, plan, host, gpu))
    most = _counted(_largest(plan, host, gpu))
    if fitting:
        return f"{clause}: it fits with {', or with '.join(fitting)}; as it is, at most {most} parameters fit"
    setting = "no setting that a begun run may change" if is_begun else "no setting"
    return f"{clause}: {setting} makes it fit, and at most {most} parameters do"


def warning(model: SizedModel, plan: MemoryPlan, host: MemoryCapacity) -> str | None:
    """Return a clause on why a run that is not refused may still run out of host memory; None if it has enough.

    The memory of the process is counted too and, if the model's shape is known, that of a pass of one row.
    """
    needed = plan.state_bytes * model.num_parameters
    if not plan.is_on_host or plan.only_built or needed > host.num_bytes:
        return None
    beside = _PROCESS_BYTES + (0.0 if model.shape is None else _pass_bytes(model.shape, model.length, 0))
    if needed + beside <= host.num_bytes:
        return None
    return (
        f"training the model takes {shown_size(needed)} at least ({_parts(plan)}) and about {shown_size(beside)} "
        f"beside that, and {host.words}"
    )


def _problem(size: int, plan: MemoryPlan, host: MemoryCapacity, gpu: MemoryCapacity | None) -> str | None:
    trains = f"training takes {shown_size(plan.state_bytes * size)} at least ({_parts(plan)}), "
    if plan.is_on_host and not plan.only_built and plan.state_bytes * size > host.num_bytes:
        return trains + f"but {host.words}"
    if FP32 * size > host.num_bytes:
        return f"building it takes {shown_size(FP32 * size)} of host memory in each process, but {host.words}"
    if gpu is not None and not plan.only_built and plan.state_bytes * size > gpu.num_bytes:
        return trains + f"but {gpu.words}"
    return None


def _parts(plan: MemoryPlan) -> str:
    parts = "weights, gradients and optimizer state" if plan.trains_all else "weights"
    if plan.weight_bytes > FP32:
        parts = "weights, their average, gradients and optimizer state"
    return f"{parts}, {plan.state_bytes:.3g} bytes a parameter"


def _remedies(model: SizedModel, plan: MemoryPlan, host: MemoryCapacity, gpu: MemoryCapacity | None) -> Iterator[str]:
    for words, alternative in _other_plans(plan, has_gpu=gpu is not None):
        for every, more in ((0, ""), (1, " and model.gradient_checkpointing=full")):
            if _fits(model, alternative, host, gpu, every):
                yield words + more
                break
    for parts in range(plan.num_parts + 1, 0 if plan.only_built or not plan.trains_all else _MOST_PROCESSES):
        if _fits(model, replace(plan, num_parts=parts), host, gpu, 1):
            unit = "GPUs" if gpu is not None else "such machines"
            yield f"optimizer.sharding=fsdp2 on {parts} {unit} and model.gradient_checkpointing=full"
            break


def _other_plans(plan: MemoryPlan, *, has_gpu: bool) -> Iterator[tuple[str, MemoryPlan]]:
    if plan.only_built:
        return
    if plan.weight_bytes > FP32:
        yield "optimizer.ema=null", replace(plan, weight_bytes=FP32)
    if plan.may_keep_8_bits and plan.trains_all and plan.optimizer_bytes > _OF_8_BITS:
        yield "optimizer.algorithm=adamw_8bit", replace(plan, optimizer_bytes=_OF_8_BITS)
    if plan.loads_weights and plan.trains_all:
        yield "adapters (model.lora={rank: 16})", replace(plan, trains_all=False, weight_bytes=FP32)
    if plan.loads_weights and has_gpu and plan.weight_bytes >= FP32 and plan.num_parts == 1:
        quantized = replace(plan, trains_all=False, weight_bytes=_OF_4_BITS)
        yield "adapters on 4-bit weights (model.lora={rank: 16, quantize: 4bit})", quantized


def _fits(
    model: SizedModel, plan: MemoryPlan, host: MemoryCapacity, gpu: MemoryCapacity | None, checkpoint_every: int
) -> bool:
    size = model.num_parameters
    capacity = host if gpu is None else gpu
    if FP32 * size > host.num_bytes:
        return False
    if model.shape is None:
        return _MARGIN * plan.state_bytes * size <= capacity.num_bytes
    return plan.state_bytes * size + _pass_bytes(model.shape, model.length, checkpoint_every) <= capacity.num_bytes


def _pass_bytes(shape: ModelShape, length: int, checkpoint_every: int) -> float:
    """Return the bytes of activations and loss in a pass of one row."""
    estimate = estimate_memory(shape, Training(rows=1, length=length, checkpoint_every=checkpoint_every))
    return estimate.activations + estimate.loss


def _largest(plan: MemoryPlan, host: MemoryCapacity, gpu: MemoryCapacity | None) -> int:
    needed = [host.num_bytes / FP32]
    if not plan.only_built:
        needed.append((host if plan.is_on_host or gpu is None else gpu).num_bytes / plan.state_bytes)
    return max(0, int(min(needed)))


def _counted(number: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.3g} {word}"
    return f"{number:,.0f}"


@dataclass(frozen=True, slots=True)
class CheckpointBudget:
    """The bytes per rank that activations of one micro-batch may take, and the ``training`` that they belong to."""

    max_bytes: int
    training: Training


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The N of every:N, 0 for none, with the predicted bytes of activations with it and without recomputation."""

    every: int
    activations: float
    all_kept: float

    @property
    def policy(self) -> str:
        """Return the choice in the notation of ``model.gradient_checkpointing``."""
        return {0: "none", 1: "full"}.get(self.every, f"every:{self.every}")


def choose_checkpointing(shape: ModelShape, budget: CheckpointBudget) -> CheckpointChoice:
    """Return the policy that recomputes the fewest layers within the budget.

    Raises ``ConfigurationError`` with the smallest sufficient budget if no policy fits.
    """
    layers = shape.num_layers
    spread = {-(-layers // every): every for every in range(layers, 0, -1)}  # among equal ones the closest
    taken = {every: _activations(shape, budget.training, every) for every in (0, *spread.values())}
    for every, activations in taken.items():
        if activations <= budget.max_bytes:
            return CheckpointChoice(every, activations, taken[0])
    least = math.ceil(min(taken.values()) / 2**20)
    rows, length = budget.training.rows, budget.training.length
    msg = (
        f"model.gradient_checkpointing leaves {shown_size(budget.max_bytes)} for the activations of {rows} "
        f"rows of {length} tokens, which take {least}MiB at least: set budget:{least}MiB or a smaller "
        "optimizer.micro_batch"
    )
    raise ConfigurationError(msg)


def _activations(shape: ModelShape, training: Training, every: int) -> float:
    return estimate_memory(shape, replace(training, checkpoint_every=every)).activations
