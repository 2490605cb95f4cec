"""What ``auto`` means on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from bootstrap.lazy import lazy
from bootstrap.plugins import load_plugin
from configs.sections.optimizer import TorchOptimizerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from configs.settings import TrainSettings


def choose_hardware(settings: TrainSettings, decide: Callable[[str, str, str], str]) -> dict[str, str]:
    """Return device, precision and kinds of attention for torch.

    ``decide(name, value, reason)`` keeps what an earlier start decided. The device is chosen at each start, as a run
    may move; the precision once, as another would be another run.
    """
    optimizer = settings.optimizer
    if not isinstance(optimizer, TorchOptimizerSettings):
        return {}
    device, _ = lazy("adapters.shared.device:choose_device")(optimizer.device)
    precision, reason = lazy("adapters.shared.device:choose_precision")(optimizer.precision, device)
    if optimizer.precision == "auto":
        precision = decide("optimizer.precision", precision, reason)
    from adapters.shared.attention import BUILT_IN_ATTENTION, choose_attention, register_attention

    attention = getattr(settings.model, "attention", "auto")
    if attention not in ("auto", *BUILT_IN_ATTENTION):
        register_attention(attention, load_plugin("attention", attention, built_in=BUILT_IN_ATTENTION))
    attention, _ = choose_attention(attention, device, precision)
    return {"optimizer.device": device, "optimizer.precision": precision, "model.attention": attention}


def torch_state(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Return a context that puts torch's process-wide state back at its end, if the run uses torch."""
    if not isinstance(settings.optimizer, TorchOptimizerSettings):
        return nullcontext()
    context: AbstractContextManager[Any] = lazy("adapters.shared.device:torch_state_preserved")(
        deterministic=settings.run.deterministic
    )
    return context
