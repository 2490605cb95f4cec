"""Tensor parallelism: heads, neurons and vocabulary of a model shared by the ranks of a group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, final

from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.adapters.shared.modeling.collectives import spread, sum_over
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

_STYLES: Mapping[str, Callable[[], ColwiseParallel | RowwiseParallel]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
}
_SUMMED = "replicated_with_grad_allreduce"  # a norm of heads, each of which is on one rank
_HEADS = ("num_attention_heads", "num_key_value_heads")


@final
class TensorParallelism:
    """Shares the weights of a network among the ranks of ``mesh`` (one axis), which have the same rows.

    The plan is that of transformers (``base_model_tp_plan`` of the configuration); the vocabulary is shared too.
    """

    def __init__(self, network: Any, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._group = mesh.get_group()
        plan = _plan_of(network)
        _check_divisible(network, mesh.size())
        for name, module in list(network.base_model.named_modules()):
            style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
            if style == _SUMMED:
                self._sum_gradients(module)
            elif style is not None:
                parallelize_module(module, mesh, _STYLES[style]())
        self._share_vocabulary(network)

    def whole(self, parameter: Tensor | None, *, is_partial: bool) -> Tensor | None:
        """Return ``parameter``, shared or None, gathered from all ranks.

        ``is_partial``: each rank computes a part of its gradient; otherwise all compute the same.
        """
        if parameter is None:
            return None
        assert isinstance(parameter, DTensor)
        gradient = Partial() if is_partial else Replicate()
        whole: Tensor = parameter.redistribute(placements=[Replicate()]).to_local(grad_placements=[gradient])
        return whole

    def own_part(self, values: Tensor) -> Tensor:
        """Return this rank's part of ``values``, one of equal parts along the first dimension."""
        return values.tensor_split(self._mesh.size())[self._mesh.get_local_rank()]

    def spread(self, hidden: Tensor) -> Tensor:
        """Return ``hidden``, which all ranks have, for a use on each rank alone: its gradients are summed."""
        return spread(hidden, self._group)

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of each rank's ``part``; its gradient is that of the sum."""
        return sum_over(part, self._group)

    def _share_vocabulary(self, network: Any) -> None:
        embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
        is_tied = head.weight is embedding.weight
        parallelize_module(embedding, self._mesh, RowwiseParallel(input_layouts=Replicate()))
        parallelize_module(head, self._mesh, ColwiseParallel(output_layouts=Replicate()))
        if is_tied:
            head.weight = embedding.weight

    def _sum_gradients(self, module: nn.Module) -> None:
        """Let ``module`` use its parameters, which all ranks have, as values whose gradients are summed over ranks."""
        plain = module.forward

        def forward(*arguments: Any, **options: Any) -> Any:
            own = dict(module.named_parameters(recurse=False))
            try:
                for name, parameter in own.items():
                    module._parameters[name] = self.spread(parameter)  # type: ignore[assignment]  # noqa: SLF001
                return plain(*arguments, **options)
            finally:
                module._parameters.update(own)  # noqa: SLF001

        module.forward = forward


def _plan_of(network: Any) -> Mapping[str, str]:
    """Return the styles by the names of the modules in ``network.base_model``, with ``*`` for the number of a layer.

    Raises ``ConfigurationError`` if there are none, or others than this module knows.
    """
    name = type(network).__name__
    plan = dict(getattr(network.config, "base_model_tp_plan", None) or {})
    if not plan:
        msg = f"distributed.mesh.tensor is set, and {name} has no plan for tensor parallelism: use model.kind=decoder "
        raise ConfigurationError(msg + "if the model has its shape, or distributed.mesh.shard")
    unknown = sorted({style for style in plan.values() if style not in _STYLES and style != _SUMMED})
    if unknown:
        msg = f"distributed.mesh.tensor is set, and the plan of {name} has the style {unknown[0]}, which is not "
        raise ConfigurationError(msg + "supported in training: leave distributed.mesh.tensor at 1")
    return plan


def _check_divisible(network: Any, size: int) -> None:
    config = network.config
    numbers = {name: getattr(config, name, None) for name in _HEADS}
    numbers["intermediate_size"] = getattr(config, "intermediate_size", None)
    for name, number in numbers.items():
        if number is not None and number % size:
            msg = f"distributed.mesh.tensor={size} does not divide the model's {name} of {number}: choose a divisor"
            raise ConfigurationError(msg)
