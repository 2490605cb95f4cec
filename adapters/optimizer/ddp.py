"""Distributed data parallel: the whole model on each rank."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from holdfast.adapters.optimizer.engine import TorchEngine
from holdfast.adapters.shared.network.ranks import world_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from holdfast.adapters.optimizer.weight_average import WeightAverage
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel


@final
class DdpEngine(TorchEngine):
    """A model in torch's ``DistributedDataParallel``, whose averages over ranks are scaled back to sums.

    An update that ends between the forward of its last micro-batch and the end of the backward leaves torch's
    all-reduce of gradients unfinished, so the next update starts with a new wrapper.
    """

    def __init__(
        self,
        model: CausalLanguageModel,
        optimizer: Optimizer,
        device: torch.device,
        *,
        clip: float,
        precision: str,
        average: WeightAverage | None = None,
    ) -> None:
        super().__init__(
            _parallel(model, device), model, optimizer, device, clip=clip, precision=precision, average=average
        )
        self._is_exchanging = False

    @override
    def _forward(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:
        if not torch.is_grad_enabled():
            loss: Tensor = self.model(**inputs)
            return loss
        if self._is_exchanging:
            self.module = _parallel(self.model, self.device)
        self._is_exchanging = last
        with self._exchange(last):
            return super()._forward(inputs, last=last)

    @override
    def backward(self, loss: Tensor, *, last: bool) -> None:
        with self._exchange(last):
            super().backward(loss * world_size(), last=last)
        self._is_exchanging = False

    def _exchange(self, last: bool) -> AbstractContextManager[Any]:  # noqa: FBT001  passed on by position
        assert isinstance(self.module, DistributedDataParallel)
        return nullcontext() if last else self.module.no_sync()


def _parallel(model: CausalLanguageModel, device: torch.device) -> DistributedDataParallel:
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
    )
