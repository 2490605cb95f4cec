"""Builds a torch optimizer for a network, and allocates its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import AdamW, Optimizer

from holdfast.adapters.optimizer.algorithms.muon import MuonWithAdamW
from holdfast.adapters.optimizer.algorithms.parameter_groups import NEWEST_RULE, ParameterRole, parameter_groups
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

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
            from holdfast.adapters.optimizer.algorithms.adamw_8bit import CapturableAdamW8bit

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
