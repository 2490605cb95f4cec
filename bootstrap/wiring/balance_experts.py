"""Gives a mixture of experts its balancing loss, and probes it before training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.build_model import network_of
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.configs.settings import TrainSettings

_BALANCE = "holdfast.adapters.shared.modeling.expert_balance"


def balance_experts(model: object, settings: TrainSettings, *, report: Callable[[str], object]) -> None:
    """Add the balancing loss of ``model.balancing_loss`` to a mixture of experts, in place, and report it.

    Call this before the optimizer wraps ``model``; other models are left as they are. Raises ``ConfigurationError`` if
    the setting does not fit the model, or if the probe shows that the loss would not act as the setting says.
    """
    network: Any = network_of(model)
    if network is None or not isinstance(settings.model, HuggingFaceModelSettings):
        return
    chosen, name = settings.model.balancing_loss, type(network).__name__
    if not lazy(f"{_BALANCE}:has_experts")(network):
        if chosen != "auto":
            msg = f"model.balancing_loss is {chosen:g}, but {name} has no experts: set it to auto"
            raise ConfigurationError(msg)
        return
    coefficient = lazy(f"{_BALANCE}:coefficient_for")(network, None if chosen == "auto" else chosen)
    if coefficient and settings.data.task == "preference":
        msg = (
            f"the experts of {name} would be balanced by tokens, but data.task=preference counts pairs: set "
            "model.balancing_loss=0"
        )
        raise ConfigurationError(msg)
    if coefficient is None:
        report(f"the experts of {name} train without a balancing loss: its config has no router_aux_loss_coef")
    balance = lazy(f"{_BALANCE}:balance_experts")(model, coefficient or 0.0)
    if coefficient:
        lazy("holdfast.adapters.shared.modeling.balance_probe:probe_balance")(model, balance, coefficient)
        report(
            f"the balancing loss of {len(balance.routers)} routers has the coefficient {coefficient:g}, and was probed"
        )
