"""The ``Trainable`` of all torch engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, SupportsFloat, final

import numpy as np
import torch
from torch import distributed
from typing_extensions import override

from holdfast.adapters.shared.device.memory_errors import within_memory
from holdfast.adapters.shared.device.memory_gauge import memory_bytes, memory_retries
from holdfast.adapters.shared.device.pinned_copies import PinnedCopies
from holdfast.adapters.shared.modeling.generation_settings import generation_ends
from holdfast.adapters.shared.network.ranks import rank, world_size
from holdfast.domain.errors import NonFiniteGradients, StateError
from holdfast.domain.training.parallel_mesh import ParallelMesh
from holdfast.ports.optimizer import HasOwnEnds, Trainable, Update
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray
    from torch import Tensor

    from holdfast.adapters.optimizer.engine import TrainingEngine
    from holdfast.adapters.shared.modeling.dpo_loss import DpoLoss
    from holdfast.adapters.shared.modeling.expert_balance import ExpertBalance
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Hardware
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart

ALONE = ParallelMesh()


@final
class TorchTrainable(Trainable, HasOwnEnds):
    """Trains by ``engine``; the random state of a step is derived from ``seed``, the step's number and the rank.

    Ranks of ``mesh`` that share heads and neurons of a model draw the same numbers. It evaluates and generates with the
    average of the weights if ``engine`` keeps one.
    """

    def __init__(self, engine: TrainingEngine, hardware: Hardware, *, seed: int, mesh: ParallelMesh = ALONE) -> None:
        self._engine = engine
        self._hardware = hardware
        self._seed = seed
        self._mesh = mesh
        self._copies = PinnedCopies(engine.device)

    @property
    @override
    def hardware(self) -> Hardware:
        return self._hardware

    @property
    @override
    def is_retry_safe(self) -> bool:
        return self._engine.is_retry_safe

    @property
    @override
    def memory_retries(self) -> int:
        return memory_retries(self._engine.device.type)

    @property
    @override
    def is_sharded(self) -> bool:
        return self._engine.is_sharded

    @property
    @override
    def num_positions(self) -> int | None:
        return self._engine.model.num_positions

    @property
    @override
    def own_ends(self) -> Sequence[int]:
        return generation_ends(self._engine.model.network)

    @override
    def memory_bytes(self) -> int:
        return memory_bytes(self._engine.device.type)

    @override
    def update(self, *, step: int, learning_rate: float) -> Update:
        tensor = self._mesh.tensor
        place = [rank() // tensor] if world_size() > tensor else []
        entropy = np.random.SeedSequence([self._seed % 2**64, step, *place]).generate_state(1, np.uint64)
        seed = int(entropy[0])
        torch.manual_seed(seed)
        return _TorchUpdate(self, step, learning_rate, seed)

    @override
    def evaluate(self, batch: Batch) -> Tensor:
        self._engine.module.eval()
        try:
            with torch.no_grad():
                return within_memory(self._engine.device.type, self._evaluated_loss, batch)
        finally:
            self._engine.module.train()

    @override
    def evaluate_pieces(self, batch: Batch) -> tuple[Tensor, NDArray[np.float64]]:
        model = self._engine.model
        model.token_losses = torch.zeros(batch.input_ids.shape, dtype=torch.float32, device=self._engine.device)
        try:
            total, losses = self.evaluate(batch), model.token_losses
        finally:
            model.token_losses = None
        return total, batch.sum_by_piece(losses.cpu().numpy().astype(np.float64))

    @override
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        if world_size() == 1:
            return losses
        total = torch.stack([_on_host(loss) for loss in losses]).sum()
        total = total.to(self._engine.device)
        within_memory(self._engine.device.type, distributed.all_reduce, total)
        return [total / self._mesh.peers]

    @override
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        new: list[int] = []
        self.stream(prompt, sampling, end_of_text=end_of_text, tell=new.append)
        return new

    @override
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        with self._engine.evaluated_weights():
            self._engine.ready()
            try:
                self._engine.model.generate(prompt, sampling, end_of_text=end_of_text, tell=tell)
            finally:
                self._engine.rest()

    @override
    def capture(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        if self._engine.is_torn:
            msg = "an error interrupted an optimizer step, so the parameters in memory are inconsistent: not saved"
            raise StateError(msg)
        return self._engine.capture(copy=copy)

    @override
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        self._engine.restore(folder, weights_only=weights_only, open_file=open_file)
        if not weights_only:
            self._engine.is_torn = False

    def _evaluated_loss(self, batch: Batch) -> Tensor:
        with self._engine.evaluated_weights():
            try:
                return self._engine.summed_loss(self._inputs(batch), last=True)
            finally:
                self._engine.rest()

    def _inputs(self, batch: Batch) -> Mapping[str, Tensor]:
        arrays: dict[str, NDArray[Any]] = {
            "input_ids": batch.input_ids,
            "position_ids": batch.position_ids,
            "loss_mask": batch.loss_mask,
        }
        if self._engine.device.type != "cpu":  # a device would have to be waited for to find them there
            arrays |= {"document_ends": batch.document_ends, "target_places": batch.target_places}
        if batch.reference is not None:
            arrays |= {"target_pieces": batch.target_pieces, "reference_margins": batch.reference_margins}
        self._engine.ready()
        return self._copies.copy(arrays)

    def accumulate(self, part: Batch, weight: float, *, last: bool) -> SupportsFloat:
        """Accumulate the gradient of ``part`` as ``Update`` promises."""
        return within_memory(self._engine.device.type, self._backward, part, weight, last)

    def _backward(self, part: Batch, weight: float, last: bool) -> SupportsFloat:  # noqa: FBT001  of within_memory
        return self._engine.accumulate(self._inputs(part), weight, last=last)

    def apply(self, learning_rate: float, *, number: int) -> Tensor:
        """Take the step ``number``; return the gradient's norm before clipping, a scalar tensor."""
        return self._engine.step(learning_rate, number=number)

    def figures(self) -> Mapping[str, Tensor]:
        """Return further figures of the update as ``Update`` promises."""
        return {name: value for part in self._counting() for name, value in part.figures().items()}

    def retry(self) -> bool:
        """Drop non-finite gradients; return whether they may be finite when computed again."""
        self._forget_figures()
        return self._engine.retry()

    def discard(self) -> None:
        """Drop gradients that were not applied."""
        self._forget_figures()
        self._engine.discard()

    def _forget_figures(self) -> None:
        for part in self._counting():
            part.forget()

    def _counting(self) -> Sequence[ExpertBalance | DpoLoss]:
        """Return the parts of the model that count figures of an update, in the same order on all ranks."""
        model = self._engine.model
        return [part for part in (model.balance, model.preference) if part is not None]


@final
class _TorchUpdate(Update):
    def __init__(self, trainable: TorchTrainable, number: int, learning_rate: float, seed: int) -> None:
        self._trainable = trainable
        self._number = number
        self._learning_rate = learning_rate
        self._seed = seed
        self._parts: list[tuple[Batch, float, bool]] = []

    @override
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        self._parts.append((part, weight, last))
        return self._trainable.accumulate(part, weight, last=last)

    @override
    def apply(self) -> Tensor:
        while True:
            try:
                return self._trainable.apply(self._learning_rate, number=self._number)
            except NonFiniteGradients:
                if not self._trainable.retry():
                    raise
            torch.manual_seed(self._seed)  # the same random numbers again, dropout included
            for part, weight, last in self._parts:
                self._trainable.accumulate(part, weight, last=last)

    @override
    def figures(self) -> Mapping[str, Tensor]:
        return self._trainable.figures()

    @override
    def __enter__(self) -> Self:
        self._trainable.discard()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trainable.discard()


def _on_host(loss: SupportsFloat) -> Tensor:
    if isinstance(loss, torch.Tensor):
        return loss.to("cpu", torch.float64)
    return torch.tensor(float(loss), dtype=torch.float64)
