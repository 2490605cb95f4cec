"""Tensor parallelism: heads, neurons and vocabulary of a model shared by the ranks of a group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import pad

from holdfast.adapters.shared.modeling.attention import CONTEXT_PARALLEL, register_attention, varlen_attention
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


def sum_over(part: Tensor, group: Any) -> Tensor:
    """Return the sum of ``part`` over ranks, which all use alike: the gradient of the sum is that of each part."""
    total: Tensor = _Sum.apply(part, group)  # type: ignore[no-untyped-call]
    return total


def spread(value: Tensor, group: Any) -> Tensor:
    """Return ``value``, which all ranks have, for a different use on each: its gradients are summed over ranks."""
    same: Tensor = _SumOfGradients.apply(value, group)  # type: ignore[no-untyped-call]
    return same


def all_to_all(parts: Tensor, group: Any) -> Tensor:
    """Send ``parts[i]`` to rank ``i``; return what the ranks sent here, by rank. All parts have the same shape."""
    received: Tensor = _AllToAll.apply(parts, group)  # type: ignore[no-untyped-call]
    return received


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        del ctx
        total = part.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0], None


class _SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed, group=ctx.group)
        return summed, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchange(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchange(gradients[0], ctx.group), None


def _exchange(parts: Tensor, group: Any) -> Tensor:
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    return received


@final
class ContextParallelism:
    """Divides the tokens of each row among the ranks of ``group``, which have the same rows (Ulysses).

    Between the layers a rank has consecutive tokens of all heads; in attention it has all tokens of some heads, so that
    a kernel for packed documents separates them as usual (Jacobs et al., arXiv 2309.14509). ``tensor`` ranks share the
    heads already. Raises ``ConfigurationError`` if the heads cannot be divided.
    """

    def __init__(self, network: Any, group: Any, *, tensor: int) -> None:
        self._group = group
        self._size = distributed.get_world_size(group)
        self._rank = distributed.get_rank(group)
        self._documents: tuple[Tensor, int] | None = None
        _check_length(network.config, self._size, tensor)
        if hasattr(network, "divide_rows"):
            network.divide_rows(self)
            return
        register_attention(CONTEXT_PARALLEL, _OfHuggingFace(self))
        network.set_attn_implementation(CONTEXT_PARALLEL)

    def padded(self, values: Tensor, padding: int) -> Tensor:
        """Return ``values`` (rows, length) with so many of ``padding`` at the end of a row that ranks can divide it."""
        return pad(values, (0, -values.shape[1] % self._size), value=padding)

    def own_arguments(self, arguments: Mapping[str, Any], position_ids: Tensor, ends: Tensor) -> dict[str, Any]:
        """Return the ``arguments`` of a network for this rank's tokens of rows with ``position_ids`` (rows, length).

        ``ends`` are those of the documents in the flattened whole rows, int32, with a first 0.
        """
        self._documents = ends, position_ids.shape[1]
        return {**arguments, "position_ids": self.own_tokens(position_ids)}

    def own_tokens(self, values: Tensor) -> Tensor:
        """Return the part of ``values`` (rows, length), which are padded, at this rank's tokens."""
        return values.chunk(self._size, dim=1)[self._rank].contiguous()

    def whole_rows(self, own: Tensor) -> Tensor:
        """Return the values (rows, length) of all ranks' tokens, of which this rank has ``own``, without a gradient."""
        parts = [torch.empty_like(own) for _ in range(self._size)]
        distributed.all_gather(parts, own, group=self._group)
        return torch.cat(parts, dim=1)

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of each rank's ``part``; its gradient is that of the sum."""
        return sum_over(part, self._group)

    def to_heads(self, tokens: Tensor) -> Tensor:
        """Return (rows, heads / ranks, length, width) from (rows, heads, length / ranks, width)."""
        parts: Tensor = tokens.unflatten(1, (self._size, -1))  # type: ignore[no-untyped-call]
        parts = parts.movedim(1, 0)
        return all_to_all(parts, self._group).movedim(0, 2).flatten(2, 3)

    def to_tokens(self, heads: Tensor) -> Tensor:
        """Return (rows, heads, length / ranks, width) from (rows, heads / ranks, length, width)."""
        parts: Tensor = heads.unflatten(2, (self._size, -1))  # type: ignore[no-untyped-call]
        parts = parts.movedim(2, 0)
        return all_to_all(parts, self._group).movedim(0, 1).flatten(1, 2)

    @property
    def documents(self) -> tuple[Tensor, int]:
        """Return the ends of the documents in the whole rows, and the length of a row."""
        assert self._documents is not None, "a forward pass begins with own_arguments"
        return self._documents


@final
class _OfHuggingFace:
    """An attention function in the sense of transformers, for rows that are divided."""

    mask = "lengths"

    def __init__(self, context: ContextParallelism) -> None:
        self._context = context

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        if options.get("cu_seq_lens_q") is None:  # generating: each rank has all tokens
            return varlen_attention(module, query, key, value, attention_mask, **options)
        query, key, value = (self._context.to_heads(each) for each in (query, key, value))
        attended, _ = varlen_attention(module, query, key, value, attention_mask, **options)
        return self._context.to_tokens(attended.transpose(1, 2)).transpose(1, 2), None


def _check_length(config: Any, size: int, tensor: int) -> None:
    for name in _HEADS:
        number = getattr(config, name, None)
        if number is not None and number % (size * tensor):
            axes = f"distributed.mesh.context={size}" + (f" x tensor={tensor}" if tensor > 1 else "")
            msg = f"{axes} does not divide the model's {name} of {number}: choose a divisor"
            raise ConfigurationError(msg)


PipelineSchedule: TypeAlias = Literal["1f1b", "interleaved"]
_STAGES_PER_RANK: Mapping[str, int] = {"1f1b": 1, "interleaved": 2}


@final
class PipelineParallelism:
    """Gives each rank of ``group``, all ranks if None, its share of the layers of ``network``; the others are dropped.

    With ``interleaved`` each rank has two stages, so that it waits less for the first and the last micro-batch
    (Narayanan et al., arXiv 2104.04473). Raises ``ConfigurationError`` if the network cannot be divided.
    """

    def __init__(self, network: Any, schedule: PipelineSchedule, group: Any = None) -> None:
        self.schedule = schedule
        self.group = group
        self.num_ranks = distributed.get_world_size(group)
        self.rank = distributed.get_rank(group)
        self.num_stages = self.num_ranks * _STAGES_PER_RANK[schedule]
        check_stages(network, self.num_stages, schedule)
        self._num_layers = int(network.config.num_hidden_layers)
        self.shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
        network.keep_stages(self)

    @property
    def own_stages(self) -> Sequence[int]:
        """Return the numbers of this rank's stages, in the order of the model."""
        return range(self.rank, self.num_stages, self.num_ranks)

    @property
    def is_first(self) -> bool:
        """Return whether this rank has the embeddings."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Return whether this rank has the output matrix."""
        return self.rank == self.num_ranks - 1

    def layers_of(self, stage: int) -> range:
        """Return the numbers of the layers of ``stage``; stages differ by one layer at most."""
        return range(stage * self._num_layers // self.num_stages, (stage + 1) * self._num_layers // self.num_stages)

    def is_own(self, stage: int) -> bool:
        """Return whether this rank has ``stage``."""
        return stage in self.own_stages

    def from_stage(self, stage: int, value: Tensor) -> Tensor:
        """Return the ``value`` of the rank that has ``stage``; the others pass one of its shape and dtype, any value.

        Without a gradient, for evaluation and generation, where ranks take their turns.
        """
        local = value.detach().contiguous()
        distributed.broadcast(local, group=self.group, group_src=stage % self.num_ranks)
        return local

    def from_last(self, value: Tensor) -> Tensor:
        """Return the ``value`` of the rank with the last stage, as ``from_stage`` does."""
        return self.from_stage(self.num_stages - 1, value)

    def in_turn(self, hidden: Tensor, compute: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return the last stage's hidden states, from ``hidden`` of their shape; ``compute`` runs one own stage."""
        for stage in range(self.num_stages):
            own = compute(stage, hidden).to(hidden.dtype) if self.is_own(stage) else torch.empty_like(hidden)
            hidden = self.from_stage(stage, own)
        return hidden


def check_stages(network: Any, num_stages: int, schedule: PipelineSchedule) -> None:
    """Raise ``ConfigurationError`` if ``network`` cannot be divided into ``num_stages``."""
    name = type(network).__name__
    if not hasattr(network, "keep_stages"):
        msg = f"distributed.mesh.pipeline is set, and {name} cannot be divided into stages: use model.kind=decoder, or "
        raise ConfigurationError(msg + "set distributed.mesh.pipeline=1")
    if network.config.tie_word_embeddings:
        msg = "distributed.mesh.pipeline is set, but the model's output matrix is its embedding, which would be on two "
        raise ConfigurationError(msg + "ranks: set model.tie_word_embeddings=false")
    if num_stages > network.config.num_hidden_layers:
        msg = f"distributed.mesh.pipeline with schedule={schedule} needs {num_stages} stages, and the model has only "
        raise ConfigurationError(
            msg + f"{network.config.num_hidden_layers} layers: choose fewer stages, or more layers"
        )
