"""Weights that get their values after a model was divided among ranks, so that each rank holds only its part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from holdfast.adapters.shared.tensor_state.local_shards import assign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    Fill: TypeAlias = Callable[[Any], object]  # of a CausalLanguageModel

_GROUP = 16  # torch draws normal numbers in groups of this size, so parts of whole groups equal the whole
_AT_ONCE = _GROUP << 16  # elements


@final
@dataclass(frozen=True, slots=True)
class DeferredWeights:
    """The weights of a network on the meta device: ``fill`` gives each that the model still has its values.

    ``probed`` is a small network of the same parts, for checks that need values before.
    """

    fill: Fill
    probed: nn.Module


@final
@dataclass(frozen=True, slots=True)
class InitialWeight:
    """The initial values of the tensor ``name`` of ``size`` elements.

    ``draw`` overwrites a flat fp32 tensor with the next of the values, in place.
    """

    name: str
    size: int
    draw: Callable[[Tensor], object]


def place_weights(model: Any, device: torch.device, *, offload: bool = False) -> None:
    """Give the weights of a ``CausalLanguageModel``, which has them deferred, their values on ``device``.

    This rank's part of them is all that comes into memory: call it after the model was divided. With ``offload``
    parameters are in host memory, and only buffers, which are not divided, on ``device``.
    """
    assert model.deferred is not None, "the model was built without its weights"
    fill: Fill = model.deferred.fill
    model.deferred = None  # which frees the probed network before memory is taken
    model.to_empty(device="cpu" if offload else device)
    model.network.tie_weights()
    fill(model)
    for module in model.modules() if offload else ():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)  # noqa: SLF001  no public way keeps what is not persistent


@torch.no_grad()
def draw_weights(weights: Sequence[InitialWeight], tensors: Mapping[str, Tensor]) -> None:
    """Draw ``weights`` in order into the ``tensors`` of their names, whole or this rank's parts, cast to their dtypes.

    Values that no tensor takes are drawn too, as the later ones follow from the generator's state after them. Memory
    holds a few MB besides the tensors.
    """
    for weight in weights:
        values = _DrawnValues(weight)
        if weight.name in tensors:
            assign(tensors[weight.name], values.read)
        values.skip_to(weight.size)


@final
class _DrawnValues:
    """The values of a weight, drawn once from beginning to end."""

    def __init__(self, weight: InitialWeight) -> None:
        self._weight = weight
        self._part = torch.empty(0)  # the values drawn last, which end at ``_drawn``
        self._drawn = 0

    def read(self, start: int, count: int, into: Tensor | None = None) -> Tensor:
        """Return values as ``ReadRange`` promises; ranges are read in order."""
        if into is not None and count == self._weight.size and into.dtype == torch.float32:
            self._weight.draw(into)
            self._drawn = count
            return into
        drawn = torch.empty(count) if into is None or into.dtype != torch.float32 else into
        self.skip_to(start)
        place = start
        while place < start + count:
            if place == self._drawn:
                self._draw_next()
            begin = self._drawn - len(self._part)
            part = self._part[place - begin : start + count - begin]
            drawn[place - start : place - start + len(part)] = part
            place += len(part)
        return drawn

    def skip_to(self, place: int) -> None:
        """Draw and drop the values before ``place``, except those drawn with it."""
        while self._drawn < place:
            self._draw_next()

    def _draw_next(self) -> None:
        left = self._weight.size - self._drawn
        count = left if left < _AT_ONCE + _GROUP else _AT_ONCE  # torch draws fewer than a group in another way
        if len(self._part) != count:
            self._part = torch.empty(count)
        self._weight.draw(self._part)
        self._drawn += count
