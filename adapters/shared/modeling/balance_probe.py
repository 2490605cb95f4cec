"""Probes the balancing loss of a mixture of experts before a model is trained with it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch

from holdfast.adapters.shared.modeling.document_isolation import random_tokens
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.adapters.shared.modeling.expert_balance import ExpertBalance

_ROWS, _LENGTH = 2, 24
_SAME = 1e-3  # share by which a value may differ from the formula
_CLOSE = 0.05  # the same of a gradient, which is a difference of two
_ROUNDING = 1e-5  # of the gradient of the whole loss, which the difference inherits
_REMEDY = "set model.balancing_loss=0 to train without it, or use another version of transformers"


def probe_balance(model: CausalLanguageModel, balance: ExpertBalance, coefficient: float) -> None:
    """Raise ``ConfigurationError`` unless ``model`` trains with the balancing loss that ``coefficient`` asks for.

    A few random tokens go through the model, on its device, in training mode. The routers must report the logits of
    their matrices, not probabilities, and choose experts by them. The value of the loss must be that of the formula,
    also where all experts are equally likely, and its share of the routers' gradient must be ``coefficient`` times the
    gradient of the formula. Parameters, their gradients and random states do not change.
    """
    probe = _RouterProbe(model, balance)
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), _all_trained(probe.parameters):
        seen = probe.run()
        probe.check_logits(seen)
        probe.check_value(seen)
        probe.check_uniform()
        probe.check_gradient(coefficient)


@final
class _Seen:
    """The router inputs and outputs of a forward, by layer."""

    def __init__(self) -> None:
        self.hidden: list[Tensor] = []
        self.outputs: list[Any] = []

    def see(self, _module: nn.Module, inputs: Sequence[Tensor], output: Any) -> None:
        """Keep what a router got and returned."""
        self.hidden.append(inputs[0])
        self.outputs.append(output)


@final
class _RouterProbe:
    def __init__(self, model: CausalLanguageModel, balance: ExpertBalance) -> None:
        self._model = model
        self._balance = balance
        self._name = type(model.network).__name__
        self.parameters = [p for router in balance.routers for p in router.module.parameters()]
        ids = random_tokens(_ROWS * _LENGTH, model.network.config.get_text_config().vocab_size)
        device = next(model.parameters()).device
        targets = torch.ones(_ROWS, _LENGTH, dtype=torch.bool)
        targets[:, 0] = False
        self._inputs = {
            "input_ids": ids.view(_ROWS, _LENGTH).to(device),
            "position_ids": torch.arange(_LENGTH, device=device).expand(_ROWS, -1),
            "loss_mask": targets.to(device),
        }
        self._num_targets = int(targets.sum())

    def run(self) -> _Seen:
        """Run the model once, and return what its routers saw."""
        seen = _Seen()
        self._loss(seen)
        return seen

    def check_logits(self, seen: _Seen) -> None:
        """Refuse routers that report probabilities, or that choose experts by something else than their logits."""
        for router, hidden, output in zip(self._balance.routers, seen.hidden, seen.outputs, strict=True):
            logits, kind = router.logits_in(output).detach().float(), type(router.module).__name__
            if bool((logits >= 0).all()) and torch.allclose(logits.sum(-1), torch.ones(()).to(logits), atol=1e-3):
                self._refuse(f"{kind} reports probabilities in place of logits, so the softmax would be taken twice")
            computed = router.computed(hidden.detach(), logits.shape[-1])
            if computed is not None and not _are_close(logits, computed.float(), _SAME):
                self._refuse(f"{kind} reports something else than the logits of its matrix")
            chosen = [each for each in output if _is_choice(each, self._balance.top_k)] if _is_tuple(output) else []
            own = logits.topk(self._balance.top_k).indices.sort().values
            if chosen and not torch.equal(chosen[0].flatten(0, -2).sort().values.to(own), own):
                self._refuse(f"{kind} chooses experts by other scores than the softmax of its logits")

    def check_value(self, seen: _Seen) -> None:
        """Refuse a value that is not that of the formula."""
        expected = float(self._formula(seen).detach().mean())
        self._compare("its balancing loss", self._value(), expected, _SAME)

    def check_uniform(self) -> None:
        """Refuse a value other than ``top_k`` where all experts are equally likely."""
        with _zeroed(self.parameters):
            self._loss(_Seen())
            self._compare("with equally likely experts its balancing loss", self._value(), self._balance.top_k, _SAME)

    def check_gradient(self, coefficient: float) -> None:
        """Refuse a share of the gradient that is not ``coefficient`` times that of the formula."""
        with_loss = self._gradient()
        before, self._balance.coefficient = self._balance.coefficient, 0.0
        try:
            without = self._gradient()
        finally:
            self._balance.coefficient = before
        seen = self.run()
        total = self._formula(seen).sum() * (self._num_targets / _ROWS)
        gradients = torch.autograd.grad(total, self.parameters, allow_unused=True)
        expected = coefficient * _flat(self.parameters, gradients)
        measured, size = with_loss - without, expected.norm()
        if not bool(measured.any()) or not bool(size):
            self._refuse(f"the balancing loss with coefficient {coefficient:g} does not reach the routers' gradient")
        allowed = _CLOSE * size + _ROUNDING * without.norm()
        if not bool((measured - expected).norm() <= allowed):
            share = float((measured @ expected) / (size * size)) * coefficient
            self._refuse(f"the balancing loss acts with the coefficient {share:.3g} and not {coefficient:g}")

    def _loss(self, seen: _Seen) -> Tensor:
        torch.manual_seed(0)
        self._balance.forget()
        handles = [router.module.register_forward_hook(seen.see) for router in self._balance.routers]
        try:
            loss: Tensor = self._model(**self._inputs)
        finally:
            for handle in handles:
                handle.remove()
        count = len(self._balance.routers)
        seen.hidden, seen.outputs = seen.hidden[:count], seen.outputs[:count]
        return loss

    def _value(self) -> float:
        balance_loss = self._balance.mean_loss
        return float("nan") if balance_loss is None else float(balance_loss)

    def _gradient(self) -> Tensor:
        gradients = torch.autograd.grad(self._loss(_Seen()), self.parameters, allow_unused=True)
        return _flat(self.parameters, gradients)

    def _formula(self, seen: _Seen) -> Tensor:
        """Return the balancing loss of each row by the formula, one row and layer after the other, with gradients."""
        rows = []
        for row in range(_ROWS):
            part = slice(row * _LENGTH, (row + 1) * _LENGTH)
            of_layers = [
                _formula_of_row(logits[part], self._balance.top_k)
                for logits in map(self._true_logits, *self._by_layer(seen))
            ]
            rows.append(torch.stack(of_layers).mean())
        return torch.stack(rows)

    def _by_layer(self, seen: _Seen) -> tuple[Any, ...]:
        return self._balance.routers, seen.hidden, seen.outputs

    def _true_logits(self, router: Any, hidden: Tensor, output: Any) -> Tensor:
        reported: Tensor = router.logits_in(output)
        computed = router.computed(hidden, reported.shape[-1])
        return reported if computed is None else computed

    def _compare(self, what: str, found: float, expected: float, share: float) -> None:
        if not abs(found - expected) <= share * abs(expected):
            self._refuse(f"{what} is {found:.4f} where the formula gives {expected:.4f}")

    def _refuse(self, why: str) -> NoReturn:
        msg = f"the experts of {self._name} would not be balanced as model.balancing_loss says, as {why}: {_REMEDY}"
        raise ConfigurationError(msg)


def _formula_of_row(logits: Tensor, top_k: int) -> Tensor:
    probabilities = torch.exp(logits.float() - torch.logsumexp(logits.float(), -1, keepdim=True))
    num_tokens, num_experts = probabilities.shape
    total = probabilities.new_zeros(())
    best = logits.topk(top_k).indices
    for expert in range(num_experts):
        share = (best == expert).sum() / num_tokens
        total = total + share * probabilities[:, expert].mean()
    return num_experts * total


@contextmanager
def _all_trained(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let ``parameters`` have gradients within the block, also those that adapters leave frozen."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextmanager
def _zeroed(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.data.zero_()
        yield
    finally:
        for parameter, values in zip(parameters, kept, strict=True):
            parameter.data.copy_(values)


def _flat(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> Tensor:
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten().double() for p, g in pairs])


def _are_close(here: Tensor, there: Tensor, share: float) -> bool:
    return bool((here - there).abs().max() <= share * there.abs().max().clamp(min=1e-9))


def _is_tuple(output: Any) -> bool:
    return isinstance(output, tuple)


def _is_choice(each: Any, top_k: int) -> bool:
    return isinstance(each, torch.Tensor) and not each.is_floating_point() and each.shape[-1] == top_k
