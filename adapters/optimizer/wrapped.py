"""A model on its device or devices with its optimizer: what differs between one process and many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from typing_extensions import override

from adapters.shared.causal_language_model import MODEL_FILE
from adapters.shared.device import within_memory
from adapters.shared.optimizer_state import capture_optimizer, restore_optimizer
from adapters.shared.sharding import whole
from adapters.shared.state_parts import read_tensors
from domain.errors import NonFiniteGradients

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from adapters.shared.causal_language_model import CausalLanguageModel
    from ports.state_store import StatePart


class Wrapped(ABC):
    """A model and its optimizer, as ``TorchTrainable`` drives them; ``module`` is called for a part's summed loss.

    ``is_torn`` tells that an error cut a step in two, ``is_retry_safe`` that an abandoned update leaves no trace.
    """

    is_retry_safe = True

    def __init__(self, module: Module, model: CausalLanguageModel, device: torch.device) -> None:
        self.module = module
        self.model = model
        self.device = device
        self.is_torn = False

    def summed_loss(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:  # noqa: ARG002  for those that exchange
        """Return a part's summed loss; if it is to be learned from, ``last`` says whether the update's last part is."""
        loss: Tensor = self.module(**inputs)
        return loss

    def rest(self) -> None:  # noqa: B027  most have nothing
        """Give back what going through the model without learning may have left in memory."""

    @abstractmethod
    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of ``loss``; after the ``last`` one it is the sum of all ranks' gradients."""

    @abstractmethod
    def step(self, learning_rate: float) -> Tensor:
        """Clip, step and return the norm before clipping; ``NonFiniteGradients`` changes nothing."""

    @abstractmethod
    def discard(self) -> None:
        """Drop all gradients, those of an update that was left in the middle too."""

    @abstractmethod
    def capture(self) -> Sequence[StatePart]:
        """Return weights and optimizer by value, the same whatever the number of ranks, which all call it."""

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool) -> None:
        """Continue from what ``capture`` wrote into ``folder``."""


class TorchWrapped(Wrapped):
    """A model whose gradients and parameters a torch optimizer sees, on one device; ``clip`` bounds their norm."""

    def __init__(
        self, module: Module, model: CausalLanguageModel, optimizer: Optimizer, device: torch.device, *, clip: float
    ) -> None:
        super().__init__(module, model, device)
        self._optimizer = optimizer
        self._clip = clip
        self._names = {parameter: name for name, parameter in model.network.named_parameters()}
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]

    @override
    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    @override
    def step(self, learning_rate: float) -> Tensor:
        norm = within_memory(self.device.type, self._clip_gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.is_torn = True  # a shortage in here is no ``OutOfMemory``: the step could not be tried again
        self._optimizer.step()
        self.is_torn = False
        return norm

    @override
    def discard(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    @override
    def capture(self) -> Sequence[StatePart]:
        return (*self.model.capture(), *capture_optimizer(self._optimizer, self._names))

    @override
    def restore(self, folder: Path, *, weights_only: bool) -> None:
        weights = read_tensors(folder / MODEL_FILE)
        self.model.check_fits(weights)
        if not weights_only:
            restore_optimizer(self._optimizer, self._names, folder)
        self.model.load_weights(weights)

    def _clip_gradients(self) -> Tensor:
        norm = whole(get_total_norm([p.grad for p in self._parameters if p.grad is not None]))
        refuse_non_finite(norm)
        clip_grads_with_norm_(self._parameters, self._clip, norm)
        return norm


def refuse_non_finite(norm: Tensor) -> None:
    """Raise ``NonFiniteGradients`` if ``norm`` is no number."""
    if not torch.isfinite(norm):
        msg = f"the gradient's norm is {norm.item()}: a lower optimizer.learning_rate may help"
        raise NonFiniteGradients(msg)


def num_ranks() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1
