"""What ``auto`` means on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from bootstrap.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    from configs.settings import TrainSettings

_TORCH_KINDS = ("accelerate",)


def choose_hardware(settings: TrainSettings, decide: Callable[[str, str, str], str]) -> dict[str, str]:
    """Return device and precision for torch; ``decide(name, value, reason)`` keeps what an earlier start decided.

    The device is chosen at each start, as a run may move; the precision once, as another would be another run.
    """
    if settings.optimizer.kind not in _TORCH_KINDS:
        return {}
    device, _ = lazy("adapters.shared.device:choose_device")(settings.optimizer.device)
    precision, reason = lazy("adapters.shared.device:choose_precision")(settings.optimizer.precision, device)
    if settings.optimizer.precision == "auto":
        precision = decide("optimizer.precision", precision, reason)
    return {"optimizer.device": device, "optimizer.precision": precision}


def torch_state(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Return a context that puts torch's process-wide state back at its end, if the run uses torch."""
    if settings.optimizer.kind not in _TORCH_KINDS:
        return nullcontext()
    context: AbstractContextManager[Any] = lazy("adapters.shared.device:torch_state_preserved")(
        deterministic=settings.run.deterministic
    )
    return context
