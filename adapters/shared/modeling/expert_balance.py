"""The load-balancing loss of a mixture of experts, and the load of its experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import distributed, nn
from torch.nn.functional import linear

from holdfast.adapters.shared.network.ranks import world_size
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor


@final
class ExpertBalance:
    """Adds the balancing loss of ``routers`` to the gradient of a model, and counts the tokens of each expert.

    A router chooses ``top_k`` experts for a token by the softmax of its logits. The loss of a row with N experts is the
    mean over layers of N times the sum over experts of the share of tokens that chose the expert times its mean
    probability (Switch Transformers; Fedus et al., arXiv 2101.03961): ``top_k`` where all experts get the same, more
    otherwise. Padding does not count. A row weighs as much as it has targets, so the result depends neither on the
    micro-batch nor on the number of ranks. ``coefficient`` multiplies the loss; with 0 loads are counted only.
    """

    def __init__(self, routers: Sequence[Router], top_k: int, coefficient: float) -> None:
        self.routers = routers
        self.top_k = top_k
        self.coefficient = coefficient
        self._is_open = False
        self._logits: list[Tensor] = []
        self._tally = _Tally()
        for router in routers:
            router.module.register_forward_hook(router.hook(self._record))

    def attach(self, model: nn.Module) -> None:
        """Take part in each forward of ``model``, whose arguments are those of ``CausalLanguageModel``, in training.

        Its result stays the same number, and has the gradient of the balancing loss too.
        """
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, with_kwargs=True)

    def forget(self) -> None:
        """Begin to count for a new update."""
        self._tally = _Tally()

    @property
    def mean_loss(self) -> Tensor | None:
        """Return the mean balancing loss of this rank in the update, a scalar on the device; None if there is none."""
        sums = self._tally.sums
        return None if sums is None else _mean(sums)

    def figures(self) -> Mapping[str, Tensor]:
        """Return the mean balancing loss and the loads of the update on all ranks, scalars on the device; collective.

        A load is the number of tokens of an expert, divided by the mean of its layer: the largest and the smallest of
        all layers. Empty if nothing was counted.
        """
        if self._tally.sums is None:
            return {}
        sums, counts = self._tally.of_all_ranks()
        loads = torch.cat([each / each.mean().clamp(min=1e-9) for each in counts])
        return {"balancing_loss": _mean(sums), "expert_load_max": loads.max(), "expert_load_min": loads.min()}

    def row_losses(self, logits: Sequence[Tensor], is_token: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the balancing loss of each row, fp32 (rows,), and the tokens of each expert of each layer, fp32.

        ``logits`` of a layer are (rows x length, experts), ``is_token`` bool (rows, length) is false on padding.
        """
        losses, counts = [], []
        number = is_token.sum(1).clamp(min=1)[:, None]
        for of_layer in logits:
            shares = of_layer.float().view(*is_token.shape, -1).softmax(-1) * is_token[..., None]
            chosen = torch.zeros_like(shares).scatter_(-1, shares.topk(self.top_k).indices, 1.0)
            tokens = (chosen * is_token[..., None]).sum(1)
            losses.append(shares.shape[-1] * (tokens / number * shares.sum(1) / number).sum(-1))
            counts.append(tokens.sum(0).detach())
        return torch.stack(losses).mean(0), counts

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _record(self, logits: Tensor) -> None:
        if self._is_open:
            self._logits.append(logits)

    def _begin(self, model: nn.Module, _: Any) -> None:
        self._is_open = model.training and torch.is_grad_enabled()
        self._logits = []

    def _end(self, model: nn.Module, _: Any, inputs: Mapping[str, Tensor], loss: Tensor) -> Tensor:
        if not self._is_open:
            return loss
        self._is_open = False  # layers that are recomputed in the backward must not record again
        logits, self._logits = self._logits, []
        if len(logits) != len(self.routers):
            msg = f"{len(logits)} of {len(self.routers)} routers of {type(model).__name__} reported logits, so the "
            msg += "balancing loss is not known: set model.compile=none, or model.balancing_loss=0 to train without it"
            raise ConfigurationError(msg)
        losses, counts = self.row_losses(logits, _tokens_in(inputs["position_ids"]))
        weights = inputs["loss_mask"][:, 1:].sum(1)
        total = (losses * weights).sum()
        self._tally.add(counts, total.detach(), weights.sum())
        term = self.coefficient * total
        return loss + (term - term.detach()) if self.coefficient else loss


@final
class _Tally:
    """Sums over the micro-batches of an update.

    ``sums`` are the balancing losses and their weights, fp32 (2,), and ``counts`` the tokens of each expert by layer.
    """

    def __init__(self) -> None:
        self.counts: Sequence[Tensor] = ()
        self.sums: Tensor | None = None

    def add(self, counts: Sequence[Tensor], loss: Tensor, weight: Tensor) -> None:
        sums = torch.stack([loss.float(), weight.float()])
        if self.sums is None:
            self.counts, self.sums = counts, sums
            return
        self.counts = [before + now for before, now in zip(self.counts, counts, strict=True)]
        self.sums = self.sums + sums

    def of_all_ranks(self) -> tuple[Tensor, Sequence[Tensor]]:
        """Return ``sums`` and ``counts`` over all ranks."""
        assert self.sums is not None
        if world_size() == 1:
            return self.sums, self.counts
        flat = torch.cat([self.sums, *self.counts])
        distributed.all_reduce(flat)
        return flat[:2], torch.split(flat[2:], [len(each) for each in self.counts])


def coefficient_for(network: Any, wanted: float | None) -> float | None:
    """Return the coefficient of the balancing loss of ``network``: ``wanted``, or the one in its configuration.

    Returns None if there is none in either.
    """
    coefficient = getattr(network.config.get_text_config(), "router_aux_loss_coef", None) if wanted is None else wanted
    return None if coefficient is None else float(coefficient)


def balance_experts(model: Any, coefficient: float) -> ExpertBalance | None:
    """Give ``model``, a ``CausalLanguageModel`` with experts, their balancing loss with ``coefficient``; return it.

    Returns None if its routers are not known. With a ``coefficient`` that raises ``ConfigurationError``.
    """
    network = model.network
    config = network.config.get_text_config()
    routers = routers_of(network)
    top_k = getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_topk", None)
    if routers and top_k:
        model.balance = ExpertBalance(routers, top_k, coefficient)
        model.balance.attach(model)
    elif coefficient:
        msg = f"the routers of {type(network).__name__} are not known, so their load cannot be balanced: set "
        raise ConfigurationError(msg + "model.balancing_loss=0")
    balance: ExpertBalance | None = model.balance
    return balance


def has_experts(network: nn.Module) -> bool:
    """Return whether ``network`` is a mixture of experts."""
    return any("experts" in name.split(".") for name, _ in network.named_modules())


def _mean(sums: Tensor) -> Tensor:
    return sums[0] / sums[1].clamp(min=1)


def _tokens_in(position_ids: Tensor) -> Tensor:
    """Return where rows have tokens, bool (rows, length): not on padding, nor on pieces of one token, without a target.

    Positions are 0 at the first token of a piece and on padding; only after the former they go on.
    """
    follows = position_ids > 0
    begins = torch.zeros_like(follows)
    begins[:, :-1] = position_ids[:, 1:] == 1
    return follows | begins


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
    routers: dict[nn.Module, Router] = {}
    for kind, index, place in _recorders(network):
        for name, module in network.named_modules():
            if isinstance(module, kind) and (not place or f".{place}." in f".{name}."):
                routers.setdefault(module, Router(module, index))
    order = {module: number for number, module in enumerate(network.modules())}
    return sorted(routers.values(), key=lambda router: order[router.module])


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
