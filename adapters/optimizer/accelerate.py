"""AdamW on one device through Hugging Face Accelerate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, SupportsFloat, final

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from typing_extensions import override

from adapters.shared.causal_language_model import MODEL_FILE, CausalLanguageModel
from adapters.shared.device import memory_bytes, peak_flops, within_memory
from adapters.shared.optimizer_state import allocate_adamw, capture_optimizer, restore_optimizer
from adapters.shared.state_parts import read_tensors
from domain.errors import NonFiniteGradients, StateError
from ports.optimizer import Hardware, Optimizer, Trainable, Update

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray
    from torch import Tensor

    from domain.batch import Batch
    from domain.sampling import Sampling
    from ports.state_store import StatePart


@final
class AccelerateOptimizer(Optimizer[CausalLanguageModel]):
    """Prepares a model for AdamW (Loshchilov and Hutter, 2019) on one device; matrices decay, norms and biases do not.

    ``device`` is cpu, cuda or mps; ``precision`` fp32 or bf16 (autocast: weights and optimizer stay fp32);
    ``clip`` bounds the gradient's norm; ``sequence_length`` only enters the FLOPs of attention.
    """

    def __init__(
        self,
        *,
        device: str,
        precision: str,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
        clip: float = 1.0,
        seed: int = 0,
        sequence_length: int = 0,
    ) -> None:
        self._device = device
        self._precision = precision
        self._adamw = {"weight_decay": weight_decay, "betas": betas, "eps": epsilon}
        self._clip = clip
        self._seed = seed
        self._sequence_length = sequence_length

    @override
    def prepare(self, model: CausalLanguageModel) -> Trainable:
        AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  an earlier run may have set another precision
        mixed = "bf16" if self._precision == "bf16" else "no"
        steps = GradientAccumulationPlugin(num_steps=1)  # else the environment may set another number
        accelerator = Accelerator(cpu=self._device == "cpu", mixed_precision=mixed, gradient_accumulation_plugin=steps)
        decay = float(self._adamw["weight_decay"])  # type: ignore[arg-type]
        groups = [
            {"params": [p for p in model.parameters() if p.requires_grad and p.dim() >= 2], "weight_decay": decay},
            {"params": [p for p in model.parameters() if p.requires_grad and p.dim() < 2], "weight_decay": 0.0},
        ]
        model.to(accelerator.device)
        adamw = torch.optim.AdamW(groups, lr=0.0, fused=self._device in ("cpu", "cuda"), **self._adamw)  # type: ignore[arg-type]
        allocate_adamw(adamw)
        wrapped, optimizer = accelerator.prepare(model, adamw)
        hardware = Hardware(
            device=torch.cuda.get_device_name() if self._device == "cuda" else self._device,
            precision=self._precision,
            num_parameters=sum(p.numel() for p in model.parameters()),
            flops_per_token=_flops_per_token(model, self._sequence_length),
            peak_flops=peak_flops(self._device),
        )
        return _AccelerateTrainable(accelerator, wrapped, optimizer, hardware, clip=self._clip, seed=self._seed)


@final
class _AccelerateTrainable(Trainable):
    def __init__(
        self,
        accelerator: Accelerator,
        wrapped: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        hardware: Hardware,
        *,
        clip: float,
        seed: int,
    ) -> None:
        self._accelerator = accelerator
        self._wrapped = wrapped
        self._model: CausalLanguageModel = accelerator.unwrap_model(wrapped)
        self._optimizer = optimizer
        self._hardware = hardware
        self._clip = clip
        self._seed = seed
        self._names = {parameter: name for name, parameter in self._model.network.named_parameters()}
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._is_torn = False

    @property
    @override
    def hardware(self) -> Hardware:
        return self._hardware

    @override
    def memory_bytes(self) -> int:
        return memory_bytes(self._accelerator.device.type)

    @override
    def update(self, *, step: int, learning_rate: float) -> Update:
        entropy = np.random.SeedSequence([self._seed % 2**64, step]).generate_state(1, np.uint64)
        torch.manual_seed(int(entropy[0]))
        return _AccelerateUpdate(self, learning_rate)

    @override
    def evaluate(self, batch: Batch) -> Tensor:
        self._wrapped.eval()
        try:
            with torch.no_grad():
                return within_memory(self._accelerator.device.type, self._summed_loss, batch)
        finally:
            self._wrapped.train()

    @override
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        return self._model.generate(prompt, sampling, end_of_text=end_of_text)

    @override
    def capture(self) -> Sequence[StatePart]:
        if self._is_torn:
            msg = "an error cut an optimizer step in two, so the parameters in memory are of no one step: not saved"
            raise StateError(msg)
        return (*self._model.capture(), *capture_optimizer(self._optimizer, self._names))

    @override
    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        weights = read_tensors(folder / MODEL_FILE)
        self._model.check_fits(weights)
        if not weights_only:
            restore_optimizer(self._optimizer, self._names, folder)
            self._is_torn = False
        self._model.load_weights(weights)

    def _summed_loss(self, batch: Batch) -> Tensor:
        loss: Tensor = self._wrapped(
            input_ids=self._on_device(batch.input_ids),
            position_ids=self._on_device(batch.position_ids),
            loss_mask=self._on_device(batch.loss_mask),
        )
        return loss

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        tensor, device = torch.from_numpy(array), self._accelerator.device
        # from pinned memory the copy runs beside the host; torch keeps such memory for the next one
        return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)

    def accumulate(self, part: Batch, weight: float) -> SupportsFloat:
        return within_memory(self._accelerator.device.type, self._backward, part, weight)

    def _backward(self, part: Batch, weight: float) -> SupportsFloat:
        loss = self._summed_loss(part)
        self._accelerator.backward(loss * weight)
        # in host memory a tensor of one number, kept, would keep the allocator from reusing the room it lies in
        return loss.item() if loss.device.type == "cpu" else loss.detach()

    def apply(self, learning_rate: float) -> Tensor:
        norm = within_memory(self._accelerator.device.type, self._clip_gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._is_torn = True  # a shortage in here is no ``OutOfMemory``: the step could not be tried again
        self._optimizer.step()
        self._is_torn = False
        return norm

    def _clip_gradients(self) -> Tensor:
        norm = get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        if not torch.isfinite(norm):
            msg = f"the gradient's norm is {norm.item()}: a lower optimizer.learning_rate may help"
            raise NonFiniteGradients(msg)
        clip_grads_with_norm_(self._parameters, self._clip, norm)
        return norm

    def drop_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)


@final
class _AccelerateUpdate(Update):
    def __init__(self, trainable: _AccelerateTrainable, learning_rate: float) -> None:
        self._trainable = trainable
        self._learning_rate = learning_rate

    @override
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        return self._trainable.accumulate(part, weight)

    @override
    def apply(self) -> Tensor:
        return self._trainable.apply(self._learning_rate)

    @override
    def __enter__(self) -> Self:
        self._trainable.drop_gradients()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._trainable.drop_gradients()


def _flops_per_token(model: CausalLanguageModel, sequence_length: int) -> float:
    """Return forward and backward FLOPs: six a weight in matrix products plus attention (PaLM, appendix B)."""
    config = model.network.config
    num_weights = sum(p.numel() for p in model.parameters())
    if not config.tie_word_embeddings:
        num_weights -= model.network.get_input_embeddings().weight.numel()
    layers = getattr(config, "num_hidden_layers", 0)
    width = getattr(config, "hidden_size", 0)
    return 6.0 * num_weights + 12.0 * layers * width * sequence_length
