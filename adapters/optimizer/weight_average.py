"""An exponential moving average of the weights, kept beside them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from holdfast.adapters.shared.tensor_state.file_parts import AVERAGE_FILE
from holdfast.adapters.shared.tensor_state.sharded_tensors import saved_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch import Tensor

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart


def decay_at(step: int, decay: float) -> float:
    """Return the decay of the average at ``step`` (the first is 1): ``decay``, or less in the first steps.

    It is at most (1 + step) / (10 + step), so that the weights of the beginning are forgotten early.
    """
    return min(decay, (1 + step) / (10 + step))


@final
class WeightAverage:
    """Averages the weights that training changes in ``model``, on their device, in their dtypes and shards.

    It begins as a copy of the weights. Its value depends only on the weights after each step and the numbers of the
    steps, so it has no other state.
    """

    def __init__(self, model: CausalLanguageModel, decay: float) -> None:
        self._model = model
        self._decay = decay
        self._trained = model.trained_tensors()
        self._averaged = {name: tensor.detach().clone() for name, tensor in self._trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after ``step``."""
        move = get_ema_multi_avg_fn(decay_at(step, self._decay))  # type: ignore[no-untyped-call]
        averaged, trained = ([_local(tensor) for tensor in each.values()] for each in (self._averaged, self._trained))
        move(averaged, trained, None)  # it ignores the number of updates

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averaged weights within the block; sharded parameters must not be gathered.

        The trained weights are the same afterwards, bit for bit.
        """
        scratch = self._scratch()  # memory may run out here, and must not while weights are exchanged
        self._exchange(scratch)
        try:
            yield
        finally:
            self._exchange(scratch)

    def capture(self, *, copy: bool, sharded: bool) -> Sequence[StatePart | JoinedPart]:
        """Return the file of the average, as ``CausalLanguageModel.capture_as`` does."""
        return self._model.capture_as(AVERAGE_FILE, self._averaged, copy=copy, sharded=sharded)

    def restore(self, folder: Path, open_file: OpenFile) -> None:
        """Restore the average in ``folder``; without one there, begin again with the weights, which are restored.

        Raises ``StateError`` if the file does not fit or is damaged.
        """
        if not (folder / AVERAGE_FILE).exists():
            self.begin()
            return
        with saved_tensors(folder / AVERAGE_FILE, open_file) as saved:
            self._model.loading(saved, into=self._averaged)()

    @torch.no_grad()
    def begin(self) -> None:
        """Begin again with the weights."""
        for name, tensor in self._trained.items():
            _local(self._averaged[name]).copy_(_local(tensor))

    def _scratch(self) -> Tensor:
        largest = max((_local(tensor) for tensor in self._trained.values()), key=torch.numel)
        return torch.empty_like(largest).reshape(-1)

    @torch.no_grad()
    def _exchange(self, scratch: Tensor) -> None:
        for name, tensor in self._trained.items():
            trained, averaged = _local(tensor), _local(self._averaged[name])
            kept = scratch[: trained.numel()].view(trained.shape).copy_(trained)
            trained.copy_(averaged)
            averaged.copy_(kept)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
