"""Builds a torch optimizer for a network, and allocates its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

from holdfast.adapters.optimizer.parameter_groups import NEWEST_RULE, ParameterRole, parameter_groups
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.nn import Module

ShardLayout = Literal["whole", "sharded", "flat"]

_NEEDS = {
    "lion": 'optimizer.algorithm is lion, which needs another package: pip install "holdfast-lm[lion]"',
    "adamw_8bit": 'optimizer.algorithm is adamw_8bit, which needs another package: pip install "holdfast-lm[bnb]"',
}
_REFUSED = {
    (
        "muon",
        "flat",
    ): "works on whole matrices, but DeepSpeed flattens all parameters: choose adamw or lion",
    (
        "adamw_8bit",
        "sharded",
    ): "does not support sharded tensors: choose another optimizer.algorithm, or train without sharding",
    ("adamw_8bit", "flat"): "is not known to work under DeepSpeed: choose adamw or lion",
}


def build_optimizer(
    algorithm: str,
    network: nn.Module,
    *,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
    epsilon: float = 1e-8,
    decay_embeddings: bool = True,
    device: str = "cpu",
    layout: ShardLayout = "whole",
    rule: int = NEWEST_RULE,
) -> Optimizer:
    """Return ``algorithm`` (adamw, muon, lion, adamw_8bit) over the trainable parameters of ``network``, at rate 0.

    The parameters are already on ``device`` (cpu, cuda, mps). ``layout`` is ``whole``, ``sharded`` (each a DTensor, as
    in FSDP2) or ``flat`` (slices of one long vector, as in DeepSpeed). ``rule`` is the version of the rule that groups
    the parameters. The learning rate is set in ``param_groups`` before each step. Raises ``ConfigurationError`` if the
    algorithm does not support the layout, lacks its package or has nothing to train.
    """
    if (algorithm, layout) in _REFUSED:
        msg = f"optimizer.algorithm is {algorithm}, which {_REFUSED[algorithm, layout]}"
        raise ConfigurationError(msg)
    groups = parameter_groups(
        network,
        weight_decay=weight_decay,
        decay_embeddings=decay_embeddings,
        options_of=lambda role: _options(algorithm, role),
        rule=rule,
    )
    try:
        return _create(groups, algorithm, betas, epsilon, fused=device in ("cpu", "cuda"))
    except ImportError as error:
        raise ConfigurationError(_NEEDS.get(algorithm, str(error))) from error


def allocate_state(optimizer: Optimizer) -> None:
    """Create the state that the first step of an optimizer from ``build_optimizer`` would create.

    Running out of memory then happens before training, not in the middle of a step with some parameters already
    updated; and a restore has tensors to copy into.
    """
    for position, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if group["algorithm"] == "adamw_8bit":
                optimizer.init_state(group, parameter, position, index)  # type: ignore[attr-defined]
            else:
                optimizer.state[parameter] = _STATES[group["algorithm"]](parameter, group)


def _options(algorithm: str, role: ParameterRole) -> dict[str, Any]:
    if algorithm == "muon" and role is not ParameterRole.MATRIX:
        return {"algorithm": "adamw"}
    if algorithm == "adamw_8bit":
        return {"algorithm": algorithm, "optim_bits": 32 if role is ParameterRole.EMBEDDING else 8}
    return {"algorithm": algorithm}


def _create(
    groups: list[dict[str, Any]], algorithm: str, betas: tuple[float, float], epsilon: float, *, fused: bool
) -> Optimizer:
    match algorithm:
        case "adamw":
            return AdamW(groups, lr=0.0, betas=betas, eps=epsilon, fused=fused)
        case "muon":
            return MuonWithAdamW(groups, betas=betas, epsilon=epsilon, fused=fused)
        case "lion":
            from pytorch_optimizer.optimizer.lion import Lion

            return Lion(groups, lr=0.0, betas=betas)
        case "adamw_8bit":
            from holdfast.adapters.optimizer.adamw_8bit import CapturableAdamW8bit

            return CapturableAdamW8bit(groups, lr=0.0, betas=betas, eps=epsilon)  # type: ignore[no-untyped-call]
    msg = f"optimizer.algorithm is {algorithm}, which is not known: choose adamw, muon, lion or adamw_8bit"
    raise ConfigurationError(msg)


def _adamw_state(parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    counter = torch.zeros((), dtype=torch.float32, device=parameter.device if group["fused"] else "cpu")
    return {"step": counter, "exp_avg": _zeros(parameter), "exp_avg_sq": _zeros(parameter)}


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, memory_format=torch.preserve_format)


_STATES: dict[str, Callable[[Tensor, dict[str, Any]], dict[str, Tensor]]] = {
    "adamw": _adamw_state,
    "muon": lambda parameter, _: {"momentum_buffer": _zeros(parameter)},
    "lion": lambda parameter, _: {"exp_avg": _zeros(parameter)},
}


@final
class MuonWithAdamW(Optimizer):
    """Steps the groups whose ``algorithm`` is ``muon`` by Muon and the others by AdamW, all at the same learning rate.

    One rate fits both because Muon's updates are scaled to the size of AdamW's (0.2 times the root of the longer side:
    Liu et al., arXiv 2502.16982). Muon itself: Jordan et al., https://kellerjordan.github.io/posts/muon.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, betas: tuple[float, float], epsilon: float, fused: bool
    ) -> None:
        muon = [group for group in groups if group["algorithm"] == "muon"]
        adamw = [group for group in groups if group["algorithm"] != "muon"]
        self._parts: list[tuple[bool, Optimizer]] = []
        if muon:
            self._parts.append((True, Muon(muon, lr=0.0, adjust_lr_fn="match_rms_adamw")))
        if adamw:
            self._parts.append((False, AdamW(adamw, lr=0.0, betas=betas, eps=epsilon, fused=fused)))
        super().__init__([group for _, part in self._parts for group in part.param_groups], {})

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for is_muon, part in self._parts:
            # restoring or sharding an optimizer replaces its groups and states
            part.param_groups = [group for group in self.param_groups if (group["algorithm"] == "muon") == is_muon]
            part.state = self.state
            part.step()
        return loss


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
