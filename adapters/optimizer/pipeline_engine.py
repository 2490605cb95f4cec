"""Pipeline parallelism: the stages of a model on different ranks, by the schedules of torch.distributed.pipelining."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack, final

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.functional import pad
from typing_extensions import override

from holdfast.adapters.optimizer.engine import EngineOptions, TorchEngine
from holdfast.adapters.shared.device.memory_errors import within_memory
from holdfast.adapters.shared.modeling.losses import IGNORED
from holdfast.adapters.shared.tensor_state.optimizer_state import capture_optimizer, named_state
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.parallel_mesh import ParallelMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.adapters.shared.modeling.tensor_parallel import PipelineParallelism, PipelineSchedule
    from holdfast.ports.state_store import JoinedPart, StatePart


@final
class PipelineEngine(TorchEngine):
    """A model of which each rank has some stages; the micro-batches of an update are those of the schedule.

    Micro-batches are collected and run together with the last one, or when the loss of one is read. All are padded to
    the rows of the largest, as stages agree on one shape, and ranks without a row left compute on empty ones.
    """

    is_sharded = True

    def __init__(
        self,
        model: CausalLanguageModel,
        optimizer: Optimizer,
        device: torch.device,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(model, model, optimizer, device, **options)
        pipeline = model.pipeline_parallelism
        assert pipeline is not None, "the model is divided before its optimizer is made"
        self._pipeline: PipelineParallelism = pipeline
        self._stages = [_Stage(model, stage, pipeline) for stage in pipeline.own_stages]
        self._pending: list[_PendingLoss] = []
        own = {name: tensor.shape for name, tensor in named_state(optimizer, self._names).items()}
        self._state_shapes = {name: shape for each in _gathered(own, pipeline) for name, shape in each.items()}

    @override
    def accumulate(self, inputs: Mapping[str, Tensor], weight: float, *, last: bool) -> _PendingLoss:
        loss = _PendingLoss(inputs, weight, self._run_within_memory)
        self._pending.append(loss)
        if last:
            self._run()
        return loss

    @override
    def retry(self) -> bool:
        self._pending.clear()
        return super().retry()

    @override
    def discard(self) -> None:
        self._pending.clear()
        super().discard()

    @override
    def _over_ranks(self, norm: Tensor) -> Tensor:
        squared = norm.square()
        distributed.all_reduce(squared, group=self._pipeline.group)
        return squared.sqrt()

    def _run_within_memory(self) -> None:
        within_memory(self.device.type, self._run)

    def _run(self) -> None:
        """Run all pending micro-batches, forward and backward; afterwards each has its loss."""
        pending, self._pending = self._pending, []
        rows = max(len(each.inputs["input_ids"]) for each in pending)
        number = -(-len(pending) // self._pipeline.num_ranks) * self._pipeline.num_ranks
        ids, positions, labels = self._padded([each.inputs for each in pending], rows, number)
        scale = 1.0 if self._scale is None else self._scale.value
        weights = torch.tensor([each.weight * scale for each in pending] + [0.0] * (number - len(pending)))
        for stage in self._stages:
            stage.losses.clear()
        schedule = self._schedule(number, (rows, ids.shape[1]))
        arguments = (ids,) if self._pipeline.is_first else ()
        target = weights.to(self.device) if self._pipeline.is_last else None
        with self._autocast():
            schedule.step(
                *arguments, target=target, losses=[], return_outputs=False, position_ids=positions, labels=labels
            )
        losses = torch.zeros(number, device=self.device)
        if self._pipeline.is_last:
            losses = torch.stack(self._stages[-1].losses)
        for each, loss in zip(pending, self._pipeline.from_last(losses), strict=False):
            each.found = loss

    def _padded(self, parts: Sequence[Mapping[str, Tensor]], rows: int, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, positions and labels int64 (number x rows, length); rows of padding have no labels."""
        columns: list[list[Tensor]] = [[], [], []]
        for part in parts:
            ids, mask = part["input_ids"], part["loss_mask"]
            labels = torch.full_like(ids, IGNORED)
            labels[:, :-1] = ids[:, 1:].masked_fill(~mask[:, 1:], IGNORED)
            missing = (0, 0, 0, rows - len(ids))
            for values, padding, into in zip(
                (ids, part["position_ids"], labels), (0, 0, IGNORED), columns, strict=True
            ):
                into.append(pad(values, missing, value=padding))
        ids, positions, labels = (torch.cat(each) for each in columns)
        missing = (0, 0, 0, number * rows - len(ids))
        return pad(ids, missing), pad(positions, missing), pad(labels, missing, value=IGNORED)

    def _schedule(self, number: int, shape: tuple[int, int]) -> Schedule1F1B | ScheduleInterleaved1F1B:
        """Return a schedule of ``number`` micro-batches of ``shape``.

        Shapes are given, so that torch does not infer them by a forward and a backward of its own. A schedule serves
        one shape only, and costs nothing to make, so each update makes its own.
        """
        pipeline = self._pipeline
        width = self.model.network.config.hidden_size
        hidden = torch.empty(*shape, width, device="meta", requires_grad=True)
        ids = torch.empty(shape, dtype=torch.int64, device="meta")
        total = torch.empty((), device="meta", requires_grad=True)
        stages = [
            PipelineStage(
                stage,
                stage.number,
                pipeline.num_stages,
                self.device,
                input_args=hidden if stage.number else ids,
                output_args=total if stage.number == pipeline.num_stages - 1 else hidden,
                group=pipeline.group,
            )
            for stage in self._stages
        ]
        if pipeline.schedule == "1f1b":
            return Schedule1F1B(stages[0], number, _weighted, scale_grads=False)
        return ScheduleInterleaved1F1B(stages, number, _weighted, scale_grads=False)  # type: ignore[arg-type]

    @override
    def _capture_optimizer(self, *, copy: bool) -> Sequence[StatePart | JoinedPart]:
        return capture_optimizer(self._optimizer, self._names, sharded=True, copy=copy, is_alone=True)

    @override
    def _state_of_all_ranks(self) -> Mapping[str, torch.Size]:
        return self._state_shapes


class _PendingLoss:
    """The summed loss of a micro-batch, in nats, which is computed when it is read at the latest."""

    def __init__(self, inputs: Mapping[str, Tensor], weight: float, compute: Callable[[], None]) -> None:
        self.inputs = inputs
        self.weight = weight
        self.found: Tensor | None = None
        self._compute = compute

    def __float__(self) -> float:
        if self.found is None:
            self._compute()
        assert self.found is not None, "an update that was dropped has no losses"
        return float(self.found)


class _Stage(nn.Module):
    """A stage as torch's schedules call it; the last one returns the summed loss, and notes it in ``losses``."""

    def __init__(self, model: CausalLanguageModel, number: int, pipeline: PipelineParallelism) -> None:
        super().__init__()
        self.number = number
        self.losses: list[Tensor] = []
        self._model = (model,)  # not a submodule: the stages of a rank are parts of one model
        self._is_last = number == pipeline.num_stages - 1

    @override
    def forward(self, values: Tensor, *, position_ids: Tensor, labels: Tensor) -> Tensor:
        (model,) = self._model
        hidden: Tensor = model.network.base_model.forward_stage(self.number, values, position_ids)
        if not self._is_last:
            return hidden
        loss = model.loss_of(hidden, labels.flatten())
        self.losses.append(loss.detach())
        return loss


def _weighted(loss: Tensor, weight: Tensor) -> Tensor:
    return loss * weight[0]


def _gathered(own: Any, pipeline: PipelineParallelism) -> list[Any]:
    gathered: list[Any] = [None] * pipeline.num_ranks
    distributed.all_gather_object(gathered, own, group=pipeline.group)
    return gathered


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The wish for a division: ``sharding`` is auto, ddp or fsdp2; ``offload`` stores shards in host memory.

    ``mesh`` has all ranks; one of a single rank stands for any number of ranks along ``shard``. ``schedule`` is that of
    a pipeline.
    """

    sharding: str = "auto"
    offload: bool = False
    mesh: ParallelMesh = field(default_factory=ParallelMesh)
    schedule: PipelineSchedule = "1f1b"

    @property
    def needs_mesh(self) -> bool:
        """Return whether ranks have the same rows, or replicas of shards are wanted."""
        return self.mesh.peers * self.mesh.replicate > 1

    def resolved(self) -> Parallelism:
        """Return the division with the shards as replicas where ``sharding`` is ddp; only with a mesh."""
        mesh = self.mesh
        if self.sharding != "ddp":
            return self
        if self.offload:
            msg = "optimizer.offload stores the shards of a model in host memory, and optimizer.sharding=ddp makes "
            raise ConfigurationError(msg + "none: set optimizer.sharding=fsdp2, or offload to false")
        return Parallelism("ddp", mesh=ParallelMesh(mesh.replicate * mesh.shard, 1, mesh.context, mesh.tensor))

    def device_mesh(self, device: str) -> DeviceMesh:
        """Return the axes replicate, shard and tensor; ``shard`` includes the ranks of a context.

        Ranks of a context have the same rows, but different tokens of them, so their gradients are summed as if their
        rows were different.
        """
        mesh = self.mesh
        sizes = (mesh.replicate, mesh.shard * mesh.context, mesh.tensor)
        return init_device_mesh(device, sizes, mesh_dim_names=("replicate", "shard", "tensor"))

    def context_group(self, device: str) -> ProcessGroup:
        """Return the group of the ranks that divide the tokens of this rank's rows; collective."""
        mesh = self.mesh
        sizes = (mesh.data_ranks, mesh.context, mesh.tensor)
        return init_device_mesh(device, sizes, mesh_dim_names=("data", "context", "tensor"))["context"].get_group()
