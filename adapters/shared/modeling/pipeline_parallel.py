"""Pipeline parallelism: the layers of a model shared by the ranks of a group, which have the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import torch
from torch import distributed

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

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
        found = value.detach().contiguous()
        distributed.broadcast(found, group=self.group, group_src=stage % self.num_ranks)
        return found

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
