"""The routers of a mixture of experts of Hugging Face transformers, and their logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from torch import nn
from torch.nn.functional import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

_KEY = "router_logits"


@final
@dataclass(frozen=True, slots=True)
class Router:
    """The router ``module`` of a layer; ``index`` is the place of the logits in its output, if that is a tuple."""

    module: nn.Module
    index: int

    def logits_in(self, output: Any) -> Tensor:
        """Return the logits in the ``output`` of the module, (tokens, experts)."""
        logits: Tensor = output[self.index] if isinstance(output, tuple) else output
        return logits.flatten(0, -2)

    def hook(self, record: Callable[[Tensor], object]) -> Callable[..., None]:
        """Return a forward hook of the module that passes its logits to ``record``."""

        def after_forward(_module: nn.Module, _inputs: Any, output: Any) -> None:
            record(self.logits_in(output))

        return after_forward

    def computed(self, hidden: Tensor, num_experts: int) -> Tensor | None:
        """Return the logits of ``hidden`` (..., width) by the matrix of the router, (tokens, experts).

        Returns None if the router is not one matrix with, possibly, a bias.
        """
        layer = next((each for each in self.module.modules() if _is_matrix(each, num_experts, hidden.shape[-1])), None)
        if layer is None:
            return None
        weight: Any = layer.weight
        bias: Any = getattr(layer, "bias", None)
        return linear(hidden.flatten(0, -2), weight, bias if isinstance(bias, nn.Parameter) else None)


def routers_of(network: nn.Module) -> Sequence[Router]:
    """Return the routers of ``network`` in the order of its layers, as its classes describe them to transformers."""
    found: dict[nn.Module, Router] = {}
    for kind, index, place in _recorders(network):
        for name, module in network.named_modules():
            if isinstance(module, kind) and (not place or f".{place}." in f".{name}."):
                found.setdefault(module, Router(module, index))
    order = {module: number for number, module in enumerate(network.modules())}
    return sorted(found.values(), key=lambda router: order[router.module])


def _recorders(network: nn.Module) -> Iterator[tuple[type[nn.Module], int, str]]:
    """Yield the class, the place in the output and the part of the name of each kind of router."""
    for module in network.modules():
        specs = (getattr(type(module), "_can_record_outputs", None) or {}).get(_KEY, ())
        for spec in specs if isinstance(specs, (list, tuple)) else (specs,):
            kind = getattr(spec, "target_class", None)
            if isinstance(kind, type):
                yield kind, spec.index, (getattr(spec, "layer_name", None) or "").strip(".")


def _is_matrix(module: nn.Module, num_experts: int, width: int) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.shape == (num_experts, width)
