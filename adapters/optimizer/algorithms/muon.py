"""Muon and AdamW as one torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable


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
