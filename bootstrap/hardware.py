"""What ``auto`` means on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from bootstrap.lazy import lazy
from configs.sections.optimizer import AccelerateOptimizerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from configs.settings import TrainSettings


def choose_hardware(settings: TrainSettings, decide: Callable[[str, str, str], str]) -> dict[str, str]:
    """Return device and precision for torch; ``decide(name, value, reason)`` keeps what an earlier start decided.

    The device is chosen at each start, as a run may move; the precision once, as another would be another run.
    """
    optimizer = settings.optimizer
    if not isinstance(optimizer, AccelerateOptimizerSettings):
        return {}
    device, _ = lazy("adapters.shared.device:choose_device")(optimizer.device)
    precision, reason = lazy("adapters.shared.device:choose_precision")(optimizer.precision, device)
    if optimizer.precision == "auto":
        precision = decide("optimizer.precision", precision, reason)
    return {"optimizer.device": device, "optimizer.precision": precision}


def torch_state(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Return a context that puts torch's process-wide state back at its end, if the run uses torch."""
    if not isinstance(settings.optimizer, AccelerateOptimizerSettings):
        return nullcontext()
    context: AbstractContextManager[Any] = lazy("adapters.shared.device:torch_state_preserved")(
        deterministic=settings.run.deterministic
    )
    return context
