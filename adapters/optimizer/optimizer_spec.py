"""The specification of an optimizer: its algorithm and hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.adapters.optimizer.algorithms.optimizer_factory import build_optimizer
from holdfast.adapters.optimizer.algorithms.parameter_groups import NEWEST_RULE

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

    from holdfast.adapters.optimizer.algorithms.optimizer_factory import ShardLayout


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An algorithm by name (adamw, muon, lion, adamw_8bit) and its arguments for ``build_optimizer``.

    ``ema_decay``, if given, is the decay of an average of the weights, which is evaluated in their place. ``rule`` is
    the version of the rule that groups the parameters: a run keeps the one that it began with.
    """

    name: str = "adamw"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    decay_embeddings: bool = True
    ema_decay: float | None = None
    rule: int = NEWEST_RULE

    def build(self, network: Module, device: str, layout: ShardLayout) -> Optimizer:
        """Return the optimizer of the parameters of ``network``, which lie on ``device`` in this ``layout``."""
        return build_optimizer(
            self.name,
            network,
            weight_decay=self.weight_decay,
            betas=self.betas,
            epsilon=self.epsilon,
            decay_embeddings=self.decay_embeddings,
            device=device,
            layout=layout,
            rule=self.rule,
        )
