"""Whether the model of a run is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bootstrap.lazy import lazy
from configs.sections.optimizer import DeepspeedOptimizerSettings
from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from adapters.shared.compiling import CompiledLayers
    from bootstrap.container import Container


def compile_model(container: Container, stack: ExitStack, *, say: Callable[[str], object]) -> CompiledLayers | None:
    """Compile the layers of a run's model, if it is told to, before the optimizer wraps it.

    What is compiled is counted until ``stack`` closes. A bound of what a resume then promises is said.
    """
    settings = container.settings()
    mode = getattr(settings.model, "compile", "none")
    if mode == "none":
        return None
    if _gathers_in_layers(settings.optimizer):
        msg = "model.compile does not go with DeepSpeed's stage 3, which gathers parameters within a layer's code: "
        raise ConfigurationError(msg + "set model.compile=none, or use stage 2")
    network = getattr(container.model(), "network", None)
    if network is None:
        msg = "model.compile needs a torch model, and this run's model factory builds another: set model.compile=none"
        raise ConfigurationError(msg)
    device = container.chosen().get("optimizer.device", "cpu")
    compiled: CompiledLayers = lazy("adapters.shared.compiling:CompiledLayers")(network, mode, device)
    stack.callback(compiled.close)
    if not settings.run.deterministic:
        say("compiled without run.deterministic: another process may round otherwise, so a resume is not bit for bit")
    elif mode == "max-autotune":
        say("max-autotune chooses kernels by their time: another process may round otherwise after a resume")
    return compiled


def _gathers_in_layers(optimizer: object) -> bool:
    if not isinstance(optimizer, DeepspeedOptimizerSettings):
        return False
    if optimizer.stage is not None or optimizer.config is None:
        return optimizer.stage == 3
    zero = lazy("adapters.optimizer.deepspeed_config:read_config")(optimizer.config).get("zero_optimization")
    return isinstance(zero, dict) and zero.get("stage") == 3
