"""Rotary position embeddings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.adapters.shared.decoder.decoder_shape import PositionShape, RopeScaling

    Rotation: TypeAlias = tuple[Tensor, Tensor]


def rotation(position_ids: Tensor, positions: PositionShape, head_size: int) -> Rotation:
    """Return cosines and sines for ``rotate``, fp32 (rows, 1, length, head size).

    They are recomputed each time: a buffer would be rounded with the weights when an engine converts these to bf16.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=position_ids.device) / head_size
    frequencies = 1.0 / positions.theta**exponents
    if positions.scaling is not None:
        frequencies = _scaled(frequencies, positions.scaling)
    angles = position_ids[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, by: Rotation) -> Tensor:
    """Return ``heads``, (rows, heads, length, head size), with elements i and i + head size / 2 rotated as a pair."""
    cosines, sines = by
    first, second = heads.chunk(2, dim=-1)
    return (heads * cosines + torch.cat((-second, first), dim=-1) * sines).to(heads.dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
