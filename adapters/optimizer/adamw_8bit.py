"""AdamW with 8-bit optimizer state."""

from __future__ import annotations

from typing import Any, final

import torch
from bitsandbytes.optim.adamw import AdamW8bit
from torch import Tensor
from typing_extensions import override


@final
class CapturableAdamW8bit(AdamW8bit):
    """The AdamW of bitsandbytes with only tensors in its state, so that it can be saved by parameter.

    ``optim_bits`` of a group is 8 or 32 (Dettmers et al., arXiv 2110.02861: embeddings need 32).
    """

    @override
    def init_state(self, group: dict[str, Any], p: Tensor, gindex: int, pindex: int) -> None:
        super().init_state(group, p, gindex, pindex)  # type: ignore[no-untyped-call]
        self.state[p]["step"] = torch.zeros((), dtype=torch.int64)

    @override
    def update_step(self, group: dict[str, Any], p: Tensor, gindex: int, pindex: int) -> None:
        state = self.state[p]
        counter = state["step"]
        state["step"] = int(counter)  # its kernels accept no tensor
        super().update_step(group, p, gindex, pindex)  # type: ignore[no-untyped-call]
        state["step"] = counter.add_(1)

    @override
    def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config(gindex, pindex, group)  # type: ignore[no-untyped-call]
        return config | {"optim_bits": group["optim_bits"]}

    @override
    def to_gpu(self) -> None:
        """Leave the state where it was created: the counter stays on the host."""
