"""Chooses the micro-batch that a run starts with, and the handler that changes it later."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.micro_batch_record import MicroBatchRecord
from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.fit_micro_batch import choose_size
from holdfast.bootstrap.wiring.process_group import mesh_of
from holdfast.bootstrap.wiring.reserve_host_memory import total_bytes
from holdfast.bootstrap.wiring.resume_conditions import conditions
from holdfast.configs.rendering import dump_settings
from holdfast.domain.training.micro_batch import MicroBatchPolicy, MicroBatchState, max_micro_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.run_parts import ModelParts
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.process_group import ProcessGroup

_SETTING = "optimizer.micro_batch"
_OF_NO_WEIGHT = ("data", "deterministic", _SETTING, "processor", "threads", "torch")
_OF_THE_MODEL = ("model.loss", "model.gradient_checkpointing")  # counted with the settings of the model


def begin_micro_batch(
    parts: ModelParts,
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
    parts: ModelParts, policy: MicroBatchPolicy, of_machine: MicroBatchRecord, *, is_compiled: bool, show: ShowPhase
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


def _key(parts: ModelParts) -> str:
    """Return the key of a size: all facts that the memory of a micro-batch depends on."""
    settings = parts.settings
    mesh = mesh_of(settings.distributed, parts.process_group.size)
    plain, hardware = dump_settings(settings), parts.trainable.hardware
    # earlier versions had neither a balancing loss, whose memory is small, nor a size, which the other values include
    shape = {name: value for name, value in plain["model"].items() if name not in ("balancing_loss", "size")}
    model = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:8]
    found = conditions(settings, parts.hardware, mesh, 0)
    memory = f"{total_bytes() >> 30} GiB" if hardware.device == "cpu" else ""
    return ", ".join(
        [
            f"{hardware.num_parameters} parameters (model {model})",
            f"{settings.data.row_length} tokens",
            *(
                f"{name} {value}"
                for name, value in found.items()
                if value and name not in (*_OF_NO_WEIGHT, *_OF_THE_MODEL)
            ),
            f"algorithm {plain['optimizer'].get('algorithm')}",
            *([memory] if memory else []),
        ]
    )
