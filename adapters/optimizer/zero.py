"""A model in DeepSpeed's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from deepspeed.utils import safe_get_full_optimizer_state, safe_set_full_optimizer_state
from typing_extensions import override

from adapters.optimizer.wrapped import Wrapped, num_ranks, refuse_non_finite
from adapters.shared.algorithms import allocate_state
from adapters.shared.causal_language_model import MODEL_FILE
from adapters.shared.optimizer_state import OPTIMIZER_FILE, describe_groups, refuse_other_state
from adapters.shared.sharding import is_first_rank, shape_of
from adapters.shared.state_parts import TensorsPart, read_tensors
from domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from adapters.shared.causal_language_model import CausalLanguageModel
    from ports.state_store import StatePart

_COUNTER = "step"


@final
class Zero(Wrapped):
    """Drives ``engine`` by its own primitives; ``groups`` are the parameters as the optimizer was given them.

    DeepSpeed gathers the gradients of an update in buffers of its own and offers no way to empty them, so an update
    that is left after a part was learned from cannot be tried again: the next one raises ``TrainingError``.
    """

    is_retry_safe = False

    def __init__(
        self,
        engine: Any,  # deepspeed is not typed
        model: CausalLanguageModel,
        groups: Sequence[Mapping[str, Any]],
        names: Mapping[Tensor, str],
        device: torch.device,
    ) -> None:
        super().__init__(engine, model, device)
        self._engine = engine
        self._groups = groups
        self._names = names
        self._has_gradients = self._is_spoilt = False
        self._flat: torch.optim.Optimizer = engine.optimizer.optimizer  # over pieces of long vectors
        self._allocate()

    @override
    def summed_loss(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:
        if self._is_spoilt and torch.is_grad_enabled():
            msg = "an update was left in its middle, and DeepSpeed cannot drop what it has gathered: start again"
            raise TrainingError(msg)
        return super().summed_loss(inputs, last=last)

    @override
    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._has_gradients = True
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * num_ranks())  # it averages over ranks

    @override
    def step(self, learning_rate: float) -> Tensor:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.is_torn = True
        self._engine.step()
        self.is_torn = self._has_gradients = False
        norm = torch.as_tensor(self._engine.get_global_grad_norm())
        refuse_non_finite(torch.full((), torch.inf) if self._engine.optimizer.overflow else norm)
        return norm

    @override
    def discard(self) -> None:
        self._is_spoilt = self._has_gradients

    @override
    def capture(self) -> Sequence[StatePart]:
        model, state = self.model.capture(), dict(self._state())
        if not is_first_rank():
            return ()
        return (*model, TensorsPart(OPTIMIZER_FILE, state), describe_groups(self._groups, self._names))

    @override
    def restore(self, folder: Path, *, weights_only: bool) -> None:
        weights = read_tensors(folder / MODEL_FILE)
        self.model.check_fits(weights)
        if not weights_only:
            self._restore_state(read_tensors(folder / OPTIMIZER_FILE))
        self.model.load_weights(weights)
        self._refresh()

    def _refresh(self) -> None:
        """Let the model see the parameters that were set: DeepSpeed keeps a copy of its own for it, as after a step."""
        zero = self._engine.optimizer
        if not _is_stage_3(zero):
            zero.update_lp_params()
            return
        zero._partition_all_parameters()  # noqa: SLF001  no public way but a step
        for number in range(len(zero.fp32_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(number)  # noqa: SLF001
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        counter = self._counter()
        for parameter, name in self._names.items():
            if counter is not None:
                yield f"{_COUNTER}/{name}", counter.detach().to("cpu", copy=True)
            for key in self._keys():
                found = safe_get_full_optimizer_state(parameter, key)
                if is_first_rank():
                    yield f"{key}/{name}", found.to("cpu", copy=True).contiguous()

    def _restore_state(self, saved: Mapping[str, Tensor]) -> None:
        shapes = {f"{key}/{name}": shape_of(p) for p, name in self._names.items() for key in self._keys()}
        if (counter := self._counter()) is not None:
            shapes |= {f"{_COUNTER}/{name}": counter.shape for name in self._names.values()}
        refuse_other_state(shapes, saved)
        for parameter, name in self._names.items():
            for key in self._keys():
                safe_set_full_optimizer_state(parameter, saved[f"{key}/{name}"], key)
        for state in self._flat.state.values():
            if _COUNTER in state:
                state[_COUNTER].copy_(saved[f"{_COUNTER}/{next(iter(self._names.values()))}"])

    def _keys(self) -> list[str]:
        return [key for key in next(iter(self._flat.state.values())) if key != _COUNTER]

    def _counter(self) -> Tensor | None:
        found: Tensor | None = next(iter(self._flat.state.values())).get(_COUNTER)
        return found

    def _allocate(self) -> None:
        """Create the state that the first step would create, so that there is one to capture before it."""
        zero = self._engine.optimizer
        if _is_stage_3(zero):  # it gives the optimizer one piece at a time
            groups = self._flat.param_groups
            kept = [group["params"] for group in groups]
            for number, group in enumerate(groups):
                pieces = enumerate(zero.fp32_partitioned_groups_flat)
                group["params"] = [piece for index, piece in pieces if zero.sub_group_to_group_id[index] == number]
            allocate_state(self._flat)
            for group, parameters in zip(groups, kept, strict=True):
                group["params"] = parameters
        else:
            allocate_state(self._flat)
            zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001  the link from parameters to their state


def _is_stage_3(zero: Any) -> bool:
    return hasattr(zero, "sub_group_to_group_id")
