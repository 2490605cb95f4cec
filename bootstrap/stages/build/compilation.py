"""Compiles the model of a run, if its settings ask for it."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.training.micro_batch_search import learn_nothing
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.stages.build.model import network_of
from holdfast.configs.sections.distributed import MeshSettings, mesh_settings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings, DeepspeedOptimizerSettings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import ConfigurationError, OutOfMemory
from holdfast.domain.phase import PreparationPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from holdfast.adapters.shared.modeling.torch_compile import CompiledLayers
    from holdfast.application.data.feed import BatchStream
    from holdfast.application.preparation import Preparation
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget

# floating-point operations: about twenty minutes on two cores, where a cold warm-up takes one minute, and about five
# minutes on a large GPU, where it takes ten seconds
_WORTH = {"cpu": 3e14, "cuda": 1e17}
_MINUTES_WORTH = 20
_TRIED = frozenset({"holdfast_decoder", "llama", "mistral", "nemotron", "qwen2", "qwen3"})


def compile_model(
    model: object,
    settings: TrainSettings,
    budget: Budget,
    hardware: Mapping[str, str],
    stack: ExitStack,
    *,
    keep_choice: Callable[[str, str, str], str],
    report: Callable[[str], object],
) -> CompiledLayers | None:
    """Compile the layers of ``model`` if the settings ask for it; call this before the optimizer wraps it.

    ``budget`` has its steps, and ``hardware`` is the choice of ``choose_hardware``. Compilations are counted until
    ``stack`` closes. Raises ``ConfigurationError`` if compilation is asked for, but impossible for this model or with
    DeepSpeed's stage 3.
    """
    mode: str = settings.model.compile
    if mode == "auto":
        mode = keep_choice("model.compile", *_weigh(model, settings, budget, hardware))
        if mode != "none" and (hindrance := _hindrance(hardware)):
            report(f"this compiled run cannot be compiled here, so its resume is not bit for bit: {hindrance}")
            mode = "none"
        if mode != "none":
            report("compiling the layers of this long run: the first steps take longer (model.compile=none avoids it)")
    if mode == "none":
        return None
    if _gathers_in_layers(settings.optimizer):
        msg = "model.compile does not work with DeepSpeed's stage 3, which gathers parameters within a layer's code: "
        raise ConfigurationError(msg + "set model.compile=none, or use stage 2")
    network = network_of(model)
    if network is None:
        msg = "model.compile needs a torch model, which this run's model factory does not build: set model.compile=none"
        raise ConfigurationError(msg)
    new = lazy("holdfast.adapters.shared.modeling.torch_compile:CompiledLayers")
    compiled: CompiledLayers = new(network, mode, hardware.get("optimizer.device", "cpu"))
    stack.callback(compiled.close)
    _report_inexact_resume(mode, report, is_deterministic=settings.run.deterministic)
    return compiled


def compile_ahead(parts: Built, stream: BatchStream, rows: int, preparation: Preparation, show: ShowPhase) -> None:
    """Compile the layers of a model for the first micro-batch, of ``rows``, before the loop: a stop can abandon it.

    Nothing is learned. Only one rank on a CPU with cached data does this: others would have to agree, what a compiler
    keeps for the thread of a GPU could not be used in another one, and a first batch of streamed data would be read
    twice. Batches of another kind are compiled in the loop, such as the first with several documents in a row.
    """
    trainable = parts.trainable
    is_alone = parts.process_group.size == 1 and trainable.hardware.device == "cpu"
    if not is_alone or not trainable.is_retry_safe or not isinstance(stream, CachedBatches):
        return
    threads = lazy("torch:get_num_threads")()

    def compile_layers() -> None:
        lazy("torch:set_num_threads")(threads)  # a setting of each thread, for which code is compiled
        with suppress(OutOfMemory):  # the loop takes fewer rows then
            learn_nothing(trainable, next(next(stream.batches(Cursor())).split(rows)), times=1)

    with preparation.phase(PreparationPhase.COMPILATION):
        show("compiling the layers")
        preparation.awaited(compile_layers, is_exclusive=True)


def _report_inexact_resume(mode: str, report: Callable[[str], object], *, is_deterministic: bool) -> None:
    """Report why a resume of a compiled run may not be bit for bit, if it may not."""
    if not is_deterministic:
        report("compiled without run.deterministic: another process may round differently, so a resume is not exact")
    elif mode == "max-autotune":
        report("max-autotune chooses kernels by their time: after a resume another process may round differently")


def _weigh(model: object, settings: TrainSettings, budget: Budget, hardware: Mapping[str, str]) -> tuple[str, str]:
    """Return the mode that ``auto`` means for a new run, and the reason."""
    if untried := _untried(model, settings, hardware):
        return "none", untried
    if hindrance := _hindrance(hardware):
        return "none", hindrance
    if (budget.minutes or math.inf) < _MINUTES_WORTH:
        return "none", f"less than {_MINUTES_WORTH} minutes do not repay the warm-up"
    work = 6.0 * _parameters(model) * _tokens(settings, budget)
    if work < _WORTH[hardware["optimizer.device"]]:
        return "none", f"about {work:.0e} floating-point operations do not repay the warm-up"
    if math.isinf(work):
        return "default", f"{_MINUTES_WORTH} minutes or more repay the warm-up"
    return "default", f"about {work:.0e} floating-point operations repay the warm-up"


def _hindrance(hardware: Mapping[str, str]) -> str:
    """Return the reason why ``auto`` never compiles on this machine, empty if it may."""
    device = hardware["optimizer.device"]
    if device not in _WORTH or (device == "cuda" and is_launched()):
        return "the gain from compilation was measured only on CPUs and on one NVIDIA GPU"
    try:
        lazy("holdfast.adapters.shared.modeling.torch_compile:check_tools")(device)
    except ConfigurationError as error:
        return str(error)
    return ""


def _untried(model: object, settings: TrainSettings, hardware: Mapping[str, str]) -> str:
    """Return the reason why ``auto`` does not compile this run, empty if it may."""
    if not isinstance(settings.optimizer, AccelerateOptimizerSettings):
        return "by default only runs with optimizer.kind=accelerate are compiled"
    if not settings.run.deterministic and hardware["optimizer.device"] == "cpu":
        return "by default only deterministic runs are compiled on a CPU"
    if settings.model.lora is not None:
        return "adapters are not compiled by default"
    if mesh_settings(settings.distributed) != MeshSettings():
        return "models on a mesh are not compiled"
    network = network_of(model)
    if getattr(getattr(network, "config", None), "model_type", None) not in _TRIED:
        return f"by default only models of {', '.join(sorted(_TRIED))} are compiled"
    return ""


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())


def _tokens(settings: TrainSettings, budget: Budget) -> float:
    a_step = settings.optimizer.num_rows * settings.data.row_length
    limits = [budget.tokens or math.inf, (budget.steps or math.inf) * a_step]
    return min(limits)


def _gathers_in_layers(optimizer: object) -> bool:
    if not isinstance(optimizer, DeepspeedOptimizerSettings):
        return False
    if optimizer.stage is not None or optimizer.config is None:
        return optimizer.stage == 3
    zero = lazy("holdfast.adapters.optimizer.deepspeed_config:read_config")(optimizer.config).get("zero_optimization")
    return isinstance(zero, dict) and zero.get("stage") == 3
