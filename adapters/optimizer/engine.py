"""Training engines: a model on one or several devices with its optimizer."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired, SupportsFloat, TypedDict, Unpack, final

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW
from typing_extensions import override

from holdfast.adapters.optimizer.parameter_groups import by_mesh
from holdfast.adapters.shared.device.device_selection import computed_dtype
from holdfast.adapters.shared.device.memory_errors import within_memory
from holdfast.adapters.shared.network.ranks import is_first_rank, world_size
from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE, TextPart, read_whole
from holdfast.adapters.shared.tensor_state.optimizer_state import capture_optimizer, restore_optimizer
from holdfast.adapters.shared.tensor_state.sharded_tensors import saved_tensors
from holdfast.domain.errors import NonFiniteGradients, OutOfMemory, StateError, StepTorn
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    from holdfast.adapters.optimizer.weight_average import WeightAverage
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart


class TrainingEngine(ABC):
    """A model and its optimizer, driven by ``TorchTrainable``; ``module`` computes the summed loss of a micro-batch.

    ``is_torn``: an error interrupted a step, so parameters and optimizer are inconsistent. ``is_retry_safe``: an
    abandoned update leaves no trace. ``is_sharded``: each rank holds a shard of the weights or the optimizer.
    """

    is_retry_safe = True
    is_sharded = False

    def __init__(self, module: Module, model: CausalLanguageModel, device: torch.device) -> None:
        self.module = module
        self.model = model
        self.device = device
        self.is_torn = False

    def summed_loss(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:  # noqa: ARG002  for engines that communicate
        """Return the summed loss of a micro-batch in nats, an fp32 scalar.

        ``inputs`` are ids int64 and mask bool, all (rows, length). ``last`` marks the last micro-batch of an update.
        """
        loss: Tensor = self.module(**inputs)
        return loss

    def accumulate(self, inputs: Mapping[str, Tensor], weight: float, *, last: bool) -> SupportsFloat:
        """Accumulate the gradient of ``weight`` times the summed loss of a micro-batch; return that loss.

        Arguments are those of ``summed_loss``.
        """
        loss = self.summed_loss(inputs, last=last)
        self.backward(loss * weight, last=last)
        # a one-element tensor that stays alive in host memory would fragment the allocator's memory
        return loss.item() if loss.device.type == "cpu" else loss.detach()

    def ready(self) -> None:  # noqa: B027  most need nothing
        """Make restored parameters visible to the model; all ranks call it together, before a forward."""

    def rest(self) -> None:  # noqa: B027  most need nothing
        """Release the memory that a forward without a backward may have left allocated."""

    def evaluated_weights(self) -> AbstractContextManager[object]:
        """Return a context in which the model has the weights to evaluate: the average of its weights, if it is kept.

        ``rest`` must be called before its end.
        """
        return nullcontext()

    @abstractmethod
    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradient of ``loss``, an fp32 scalar; after the ``last`` it is summed over all ranks."""

    @abstractmethod
    def step(self, learning_rate: float, *, number: int) -> Tensor:
        """Clip the gradient, take the step ``number``, and return the gradient's norm before clipping, a scalar tensor.

        Raises ``NonFiniteGradients`` if the norm is not finite; parameters and optimizer are then unchanged.
        """

    @final
    def change(self, step: Callable[[], object]) -> None:
        """Let ``step`` change parameters and optimizer; after an error ``is_torn`` stays true.

        Raises ``StepTorn`` if memory runs out.
        """
        self.is_torn = True
        try:
            within_memory(self.device.type, step)
        except OutOfMemory as error:
            torn = StepTorn(str(error))
        else:
            self.is_torn = False
            return
        raise torn

    def retry(self) -> bool:
        """Drop non-finite gradients; return whether they may be finite when the same update is computed again."""
        return False

    @abstractmethod
    def discard(self) -> None:
        """Drop all gradients, including those of an abandoned update."""

    @abstractmethod
    def capture(self, *, copy: bool) -> Sequence[StatePart | JoinedPart]:
        """Return weights and optimizer as ``Trainable.capture`` does: all on the first rank, or each rank's shards."""

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool, open_file: OpenFile) -> None:
        """Restore the state that ``capture`` wrote into ``folder``, as ``Trainable.restore`` does."""


class EngineOptions(TypedDict):
    """What every engine of torch takes by name; ``TorchEngine`` explains it."""

    clip: float
    precision: str
    average: NotRequired[WeightAverage | None]


class TorchEngine(TrainingEngine):
    """An engine with a torch optimizer, on one device; ``clip`` bounds the norm of the gradient.

    ``precision`` is a name of ``computed_dtype``; in fp16 the loss is scaled by ``LossScale``. ``average``, if given,
    is evaluated in place of the weights, and captured and restored with them.
    """

    def __init__(
        self,
        module: Module,
        model: CausalLanguageModel,
        optimizer: Optimizer,
        device: torch.device,
        *,
        clip: float,
        precision: str,
        average: WeightAverage | None = None,
    ) -> None:
        super().__init__(module, model, device)
        self._optimizer = optimizer
        self._average = average
        self._clip = clip
        self._dtype = computed_dtype(precision)
        self._scale = LossScale() if precision == "fp16" else None
        self._names = {parameter: name for name, parameter in model.network.named_parameters()}
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # it checks ``found_inf`` on the device, so the host need not know the norm to enqueue a step
        self._skips_steps = device.type == "cuda" and isinstance(optimizer, AdamW) and optimizer.defaults["fused"]

    @override
    def summed_loss(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:
        with self._autocast():
            return self._forward(inputs, last=last)

    @override
    def backward(self, loss: Tensor, *, last: bool) -> None:
        scaled = loss if self._scale is None else loss * self._scale.value
        scaled.backward()  # type: ignore[no-untyped-call]

    @override
    def evaluated_weights(self) -> AbstractContextManager[object]:
        return nullcontext() if self._average is None else self._average.in_place()

    @override
    def step(self, learning_rate: float, *, number: int) -> Tensor:
        norm = within_memory(self.device.type, self._clip_gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self.change(self._optimizer.step)
        length = norm()
        check_finite(length)
        if self._average is not None:
            self.change(partial(self._average.update, number))
        if self._scale is not None:
            self._scale.settle()
        return length

    @override
    def retry(self) -> bool:
        self._optimizer.zero_grad(set_to_none=True)
        return self._scale is not None and self._scale.lower()

    @override
    def discard(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        if self._scale is not None:
            self._scale.forget()

    @override
    def capture(self, *, copy: bool) -> Sequence[StatePart | JoinedPart]:
        weights = self.model.capture_slices(copy=copy) if self.is_sharded else self.model.capture(copy=copy)
        parts = (*weights, *self._capture_optimizer(copy=copy))
        if self._average is not None:
            parts = (*parts, *self._average.capture(copy=copy, sharded=self.is_sharded))
        return parts if self._scale is None or not is_first_rank() else (*parts, self._scale.capture())

    @override
    def restore(self, folder: Path, *, weights_only: bool, open_file: OpenFile) -> None:
        with saved_tensors(folder / MODEL_FILE, open_file) as saved:
            load_weights = self.model.loading(saved)
            if not weights_only:
                scale = None if self._scale is None else LossScale.read(folder, open_file)
                restore_optimizer(self._optimizer, self._names, folder, open_file, whole=self._state_of_all_ranks())
                self._scale = scale
            load_weights()
        if self._average is not None and weights_only:
            self._average.begin()
        elif self._average is not None:
            self._average.restore(folder, open_file)

    def _autocast(self) -> AbstractContextManager[object]:
        lower = self._dtype != torch.float32
        return torch.autocast(self.device.type, self._dtype if lower else torch.bfloat16, enabled=lower)

    def _capture_optimizer(self, *, copy: bool) -> Sequence[StatePart | JoinedPart]:
        return capture_optimizer(self._optimizer, self._names, sharded=self.is_sharded, copy=copy)

    def _state_of_all_ranks(self) -> Mapping[str, torch.Size] | None:
        """Return the names and shapes of the optimizer's state, None if this rank has a part of each tensor."""
        return None

    def _over_ranks(self, norm: Tensor) -> Tensor:
        """Return the norm of all gradients from that of this rank's, for engines whose ranks have different ones."""
        return norm

    def _forward(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:
        return super().summed_loss(inputs, last=last)

    def _clip_gradients(self) -> Callable[[], Tensor]:
        """Clip the gradients; return a function that returns their norm before, on the host.

        Where the optimizer leaves out a step by itself, the norm is to be checked only after that step.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._scale is not None:
            for group in by_mesh(gradients):
                torch._foreach_mul_(group, 1 / self._scale.value)
        norms = [_whole(get_total_norm(group)) for group in by_mesh(gradients)]
        norm = norms[0] if len(norms) == 1 else get_total_norm(norms)
        norm = self._over_ranks(norm)
        on_host = _copy_to_host(norm)
        if self._skips_steps:
            self._optimizer.found_inf = (~torch.isfinite(norm)).float()  # type: ignore[attr-defined]
        else:
            check_finite(on_host())
        for parameters in by_mesh(self._parameters):
            clip_grads_with_norm_(parameters, self._clip, norm)
        return on_host


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _copy_to_host(scalar: Tensor) -> Callable[[], Tensor]:
    """Return a function that returns a copy, waiting only for work that the device was given before this call."""
    if scalar.device.type != "cuda":
        return lambda: scalar
    copy = torch.empty((), dtype=scalar.dtype, pin_memory=True)
    copy.copy_(scalar, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> Tensor:
        copied.synchronize()
        return copy

    return wait


def check_finite(norm: Tensor) -> None:
    """Raise ``NonFiniteGradients`` if ``norm``, a scalar tensor, is infinite or NaN."""
    if not torch.isfinite(norm):
        msg = f"the gradient's norm is {norm.item()}: a lower optimizer.learning_rate may help"
        raise NonFiniteGradients(msg)


LOSS_SCALE_FILE = "loss_scale.json"

_FIRST = 2.0**16  # this and the next are those of torch's GradScaler
_GROWTH_STEPS = 2000


@final
class LossScale:
    """A power of two, so scaling rounds nothing; halved until gradients are finite, doubled after 2000 steps.

    torch's ``GradScaler`` skips a step when gradients overflow; here it is computed again at half the scale, so that no
    batch is skipped. ``value`` is the scale of the current step; ``settle`` accepts it once the step is taken.
    """

    def __init__(self, value: float = _FIRST, *, good_steps: int = 0) -> None:
        self.value = self._settled = value
        self._good_steps = good_steps

    def lower(self) -> bool:
        """Halve the value for another try; return False, with nothing changed, if it is 1 or below."""
        if self.value <= 1:
            return False
        self.value /= 2
        return True

    def settle(self) -> None:
        """Accept the value after a step was taken with it."""
        self._good_steps = 1 if self.value < self._settled else self._good_steps + 1
        if self._good_steps == _GROWTH_STEPS:
            self.value, self._good_steps = self.value * 2, 0
        self._settled = self.value

    def forget(self) -> None:
        """Return to the value of the last step that was taken."""
        self.value = self._settled

    def capture(self) -> StatePart:
        """Return the settled value as a file."""
        return TextPart(LOSS_SCALE_FILE, json.dumps({"scale": self._settled, "good_steps": self._good_steps}))

    @classmethod
    def read(cls, folder: Path, open_file: OpenFile = open_plainly) -> LossScale:
        """Return the scale that ``capture`` wrote, or a new one if there is no file.

        Raises ``StateError`` if the file cannot be read.
        """
        path = folder / LOSS_SCALE_FILE
        if not path.exists():
            return cls()
        try:
            saved = json.loads(read_whole(path, open_file))
            return cls(float(saved["scale"]), good_steps=int(saved["good_steps"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            msg = f"{path} cannot be read: {error}; restore another checkpoint"
            raise StateError(msg) from error


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
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(_parallel(model, device), model, optimizer, device, **options)
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


@final
class TensorEngine(TorchEngine):
    """A model whose weights the ranks share by ``TensorParallelism``; the weights that they do not share are equal."""

    is_sharded = True
