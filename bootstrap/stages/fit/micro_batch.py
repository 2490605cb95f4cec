"""Chooses the micro-batch that a run starts with, and the handler that changes it later."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, final

import psutil

from holdfast.adapters.shared.device.host_memory import free_share
from holdfast.adapters.shared.files.micro_batch_record import MicroBatchRecord
from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
from holdfast.application.training.micro_batch_search import try_sizes
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.build.model import network_of
from holdfast.bootstrap.stages.choose.memory_check import layers_between, training_of
from holdfast.configs.rendering import dump_settings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings, DeepspeedOptimizerSettings
from holdfast.domain.checkpoints.reproducibility import AS_BEGUN
from holdfast.domain.checkpoints.tiers import Hysteresis
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_estimate import estimate_memory
from holdfast.domain.training.micro_batch import MicroBatchPolicy, MicroBatchState, max_micro_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.adapters.shared.device.memory_gauge import GpuGauge, HostGauge
    from holdfast.application.inbox import Inbox
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.memory_estimate import MemoryEstimate
    from holdfast.domain.training.parallel_mesh import ParallelMesh
    from holdfast.ports.process_group import ProcessGroup

_SETTING = "optimizer.micro_batch"
_OF_NO_WEIGHT = ("data", "deterministic", _SETTING, "processor", "threads", "torch")
_OF_THE_MODEL = ("model.loss", "model.gradient_checkpointing")  # counted with the settings of the model


def begin_micro_batch(
    parts: Built,
    folder: SharedRunFolder,
    inbox: Inbox,
    *,
    is_compiled: bool,
    report: Callable[[str], object],
    show: ShowPhase,
) -> tuple[int, AdaptMicroBatch]:
    """Return the rows of a micro-batch, the same on all ranks, and the handler that changes it from then on.

    A run that once ran out of memory keeps the size that fitted. A new run whose ``optimizer.micro_batch`` is not a
    number uses the size of earlier runs of the same model, length, precision and device, or else searches for it.
    """
    settings, group = parts.settings, parts.process_group
    data_ranks = mesh_of(settings.distributed, group.size).data_ranks
    key = _key(parts)
    of_run = MicroBatchRecord(RunLayout(folder.path).micro_batch, key, report)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    of_machine = MicroBatchRecord(settings.run.cache_directory / "micro-batch" / f"{name}.json", key, report)
    num_rows = settings.optimizer.num_rows
    most = max_micro_batch(num_rows, settings.optimizer.fixed_micro_batch, data_ranks)
    known = _agreed(of_run, group)
    grow_after = settings.resources.grow_after if group.size == 1 else 0  # one rank's shortage restarts all
    policy = MicroBatchPolicy(most, max(1, num_rows // data_ranks), grow_after=grow_after)
    reason = "more did not fit into memory before"
    if known is None and settings.optimizer.fixed_micro_batch is None:
        find = partial(_found, parts, policy, of_machine, is_compiled=is_compiled, show=show)
        known, reason = _decided(folder, find)
    rows = most if known is None else min(known.rows, most)
    if rows < most:
        report(f"micro-batches of {rows}, not {most}: {reason}")

    def keep(known: MicroBatchState) -> None:
        of_run.write(known)
        of_machine.write(known)

    begun = MicroBatchState(rows, {} if known is None else known.shortages)
    return rows, AdaptMicroBatch(policy, begun, inbox, keep, memory_retries=lambda: parts.trainable.memory_retries)


def _decided(folder: SharedRunFolder, find: Callable[[], tuple[MicroBatchState, str]]) -> tuple[MicroBatchState, str]:
    """Return the size that the run began with and the reason; if there is none, find it and record both."""
    if (earlier := folder.decided(_SETTING)) is not None:
        return MicroBatchState(int(earlier)), "as the run began"
    known, reason = find()
    folder.decide(_SETTING, str(known.rows), reason)
    return known, reason


def _found(
    parts: Built, policy: MicroBatchPolicy, of_machine: MicroBatchRecord, *, is_compiled: bool, show: ShowPhase
) -> tuple[MicroBatchState, str]:
    group = parts.process_group
    if (known := _agreed(of_machine, group)) is not None:
        return replace(known, rows=min(known.rows, policy.max_rows)), "more did not fit before"
    if parts.settings.optimizer.micro_batch is None:
        return MicroBatchState(policy.max_rows), "all rows"
    show("looking for the largest micro-batch")
    choice = choose_size(parts, policy.sizes, is_compiled=is_compiled)
    return MicroBatchState(min(map(int, group.gather(str(choice.rows))))), choice.reason


def _agreed(file: MicroBatchRecord, group: ProcessGroup) -> MicroBatchState | None:
    """Return the state that the first rank finds in ``file``."""
    known = file.read() if group.rank == 0 else None
    text = group.gather("" if known is None else json.dumps([known.rows, [*known.shortages.items()]]))[0]
    if not text:
        return None
    rows, shortages = json.loads(text)
    return MicroBatchState(rows, dict(shortages))


def _key(parts: Built) -> str:
    """Return the key of a size: all facts that the memory of a micro-batch depends on."""
    settings = parts.settings
    mesh = mesh_of(settings.distributed, parts.process_group.size)
    plain, hardware = dump_settings(settings), parts.trainable.hardware
    # earlier versions had neither a balancing loss, whose memory is small, nor a size, which the other values include
    shape = {name: value for name, value in plain["model"].items() if name not in ("balancing_loss", "size")}
    model = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
    key = conditions(settings, parts.hardware, mesh, 0)
    memory = f"{total_bytes() >> 30} GiB" if hardware.device == "cpu" else ""
    return ", ".join(
        [
            f"{hardware.num_parameters} parameters (model {model})",
            f"{settings.data.row_length} tokens",
            *(
                f"{name} {value}"
                for name, value in key.items()
                if value and name not in (*_OF_NO_WEIGHT, *_OF_THE_MODEL)
            ),
            f"algorithm {plain['optimizer'].get('algorithm')}",
            *([memory] if memory else []),
        ]
    )


_SMALL = 0.1  # of the free memory: below it no trial is needed


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The rows of a micro-batch, and the reason."""

    rows: int
    reason: str


def choose_size(parts: Built, sizes: Sequence[int], *, is_compiled: bool) -> SizeChoice:
    """Return the largest of ``sizes`` (ascending) that this process has memory for.

    If the formula says that all rows take at most a tenth of the free memory, the largest size is chosen. Otherwise
    sizes are tried. The formula alone decides where a trial would leave traces (DeepSpeed), compile for sizes that are
    not kept, or make other ranks wait.
    """
    settings, device = parts.settings, parts.hardware.get("optimizer.device")
    if device != "cuda" and parts.trainable.hardware.device != "cpu":
        return SizeChoice(sizes[-1], "all rows: the memory that they take is not known here")
    gauge: GpuGauge | HostGauge = lazy("holdfast.adapters.shared.device.memory_gauge:gauge_of")(
        device, settings.resources.gpu_memory_fraction
    )
    room = gauge.most() - gauge.held()
    needs = _formula(parts)
    if needs is not None and needs(sizes[-1]) <= _SMALL * room:
        return SizeChoice(
            sizes[-1], f"all rows: the formula takes {shown_size(needs(sizes[-1]))} of {shown_size(room)}"
        )
    if not parts.trainable.is_retry_safe or parts.process_group.size > 1 or is_compiled:
        return _by_formula(sizes, needs, room)
    peaks = try_sizes(parts.trainable, sizes, settings.data.row_length, gauge)
    rows = max(peaks)
    return SizeChoice(rows, f"by trial: a peak of {shown_size(peaks[rows])} of {shown_size(gauge.most())}")


def _by_formula(sizes: Sequence[int], needs: Callable[[int], float] | None, room: float) -> SizeChoice:
    if needs is None:
        return SizeChoice(sizes[-1], "all rows: no formula knows this model, and a trial would leave traces")
    rows = max((size for size in sizes if needs(size) <= room), default=sizes[0])
    return SizeChoice(rows, f"by the formula of docs/memory.md: {shown_size(needs(rows))} of {shown_size(room)}")


def memory_of(parts: Built, rows: int, *, accumulates: bool) -> MemoryEstimate | None:
    """Return the memory of training with micro-batches of ``rows``, by the formula; None for an unknown model.

    ``accumulates`` says that an update has several micro-batches. A budget for activations counts as none.
    """
    every = layers_between(parts.settings.model.gradient_checkpointing)
    formula = _estimates(parts, accumulates=accumulates, checkpoint_every=every)
    return None if formula is None else formula(rows)


def _formula(parts: Built) -> Callable[[int], float] | None:
    """Return a function from a number of rows to their bytes, without weights and optimizer; None if unknown."""
    formula = _estimates(parts, accumulates=True)
    if formula is None:
        return None
    keeps_buffers = parts.settings.optimizer.kind == "deepspeed"

    def needs(rows: int) -> float:
        estimate = formula(rows)
        there = estimate.weights + estimate.optimizer + (estimate.buffers if keeps_buffers else 0)
        return estimate.peak - there

    return needs


def _estimates(parts: Built, *, accumulates: bool, checkpoint_every: int = 0) -> Callable[[int], MemoryEstimate] | None:
    """Return a function from a number of rows to the memory of training; None if the model is unknown."""
    settings, model = parts.settings, parts.model
    try:
        shape = lazy("holdfast.adapters.shared.modeling.activation_checkpointing:shape_of")(network_of(model))
    except (ConfigurationError, AttributeError):
        return None

    def estimate(rows: int) -> MemoryEstimate:
        training = training_of(settings, parts.hardware, parts.process_group.size, rows)
        training = replace(training, checkpoint_every=checkpoint_every, accumulates=accumulates)
        return estimate_memory(shape, training)

    return estimate


_LEAST_SHARE = 0.1


def has_room_beside(is_wanted: bool) -> bool:  # noqa: FBT001  a setting, bound ahead
    """Return whether work during training ``is_wanted`` and a tenth of the host's memory is free for it."""
    return is_wanted and free_share() > _LEAST_SHARE


@final
class MemoryPressure:
    """Reports whether the host's memory is nearly full: from the upper end of ``band`` until below its lower end."""

    def __init__(self, free: Callable[[], float] | None = None, band: Hysteresis | None = None) -> None:
        self._free = free or free_share
        self._band = band or Hysteresis()
        self._is_on = False

    def __call__(self) -> bool:
        """Measure the free memory; return whether memory is nearly full."""
        self._is_on = self._band.holds(1.0 - self._free(), held=self._is_on)
        return self._is_on


def total_bytes() -> int:
    """Return the memory of this machine in bytes."""
    return int(psutil.virtual_memory().total)


def conditions(
    settings: TrainSettings, chosen: Mapping[str, str], mesh: ParallelMesh, micro_batch: int, data_changes: int = 0
) -> dict[str, str]:
    """Return the conditions by name, for people to read and for a resume to compare.

    ``chosen`` has device and precision. ``data_changes`` is the number of times that the run has continued with other
    data on purpose.
    """
    optimizer = settings.optimizer
    key = {"ranks": str(mesh), "deterministic": str(settings.run.deterministic)}
    key["data"] = f"changed on purpose, number {data_changes}" if data_changes else AS_BEGUN["data"]
    if not isinstance(optimizer, AccelerateOptimizerSettings | DeepspeedOptimizerSettings):
        return key
    import torch

    device = chosen["optimizer.device"]
    is_cpu = device == "cpu"
    return key | {
        "optimizer.kind": optimizer.kind,
        "optimizer.precision": chosen["optimizer.precision"],
        "optimizer.sharding": optimizer.sharding,
        "optimizer.offload": str(optimizer.offload),
        "model.attention": chosen["model.attention"],
        "model.loss": settings.model.loss,
        "model.gradient_checkpointing": settings.model.gradient_checkpointing,
        "optimizer.micro_batch": str(micro_batch),
        "model.compile": settings.model.compile,
        "device": device if is_cpu else torch.get_device_module(device).get_device_name(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}" if is_cpu else "",
        "threads": str(torch.get_num_threads()) if is_cpu else "",
        "torch": torch.__version__,
    }
