"""Tensor parallelism alone: the ranks of one model have the same rows."""

from __future__ import annotations

from typing import final

from holdfast.adapters.optimizer.engine import TorchEngine


@final
class TensorEngine(TorchEngine):
    """A model whose weights the ranks share by ``TensorParallelism``; the weights that they do not share are equal."""

    is_sharded = True
