"""Trains with DeepSpeed's ZeRO (arXiv 1910.02054), through Accelerate's plugin."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from typing_extensions import override

from holdfast.adapters.optimizer.deepspeed_config import complete_config, read_config
from holdfast.adapters.optimizer.deepspeed_engine import announce_builds
from holdfast.adapters.optimizer.flops import describe
from holdfast.adapters.optimizer.fsdp import refuse_launched_engine
from holdfast.adapters.optimizer.optimizer_factory import OptimizerSpec
from holdfast.adapters.optimizer.trainable import TorchTrainable
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.optimizer import Optimizer, Trainable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from accelerate import Accelerator


@final
class DeepspeedOptimizer(Optimizer[CausalLanguageModel]):
    """Prepares a model for ZeRO: each process holds a shard of the training state.

    ``device``, ``precision``, ``algorithm`` and ``seed`` are those of ``AccelerateOptimizer``. ``own`` are the run's
    values by DeepSpeed's dotted keys, ``zero_optimization.stage`` and ``gradient_clipping`` among them. ``config``
    names a DeepSpeed JSON file, which is used unchanged. Raises ``ConfigurationError`` if the file contradicts ``own``.
    """

    def __init__(
        self,
        *,
        device: str,
        precision: str,
        own: Mapping[str, Any],
        config: str | None = None,
        algorithm: OptimizerSpec | None = None,
        seed: int = 0,
        sequence_length: int = 0,
    ) -> None:
        self._device = device
        self._precision = precision
        self._spec = algorithm or OptimizerSpec()
        self._own = {**own, "bf16.enabled": precision == "bf16", "optimizer.algorithm": self._spec.name}
        self._config = config
        self._seed = seed
        self._sequence_length = sequence_length

    @override
    def prepare(self, model: CausalLanguageModel) -> Trainable:
        refuse_launched_engine("ACCELERATE_USE_DEEPSPEED")
        config = {} if self._config is None else read_config(self._config)
        names = {parameter: name for name, parameter in model.network.named_parameters()}
        with _environment_kept():
            if "WORLD_SIZE" not in os.environ:
                _make_world_of_one()
            accelerator = self._accelerator(config)
            hardware = describe(model, self._device, self._precision, self._sequence_length)
            optimizer = self._spec.build(model.network, self._device, "flat")
            groups = [dict(group) for group in optimizer.param_groups]
            engine, _ = accelerator.prepare(model, optimizer)
            unset_hf_deepspeed_config()  # or transformers would shard all models built from now on
        os.environ.setdefault("LOCAL_RANK", "0")  # stage 3 reads it in each step, alone too
        from holdfast.adapters.optimizer.deepspeed_engine import DeepSpeedEngine

        return TorchTrainable(
            DeepSpeedEngine(engine, model, groups, names, accelerator.device), hardware, seed=self._seed
        )

    def _accelerator(self, config: Mapping[str, Any]) -> Accelerator:
        if self._device == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"  # read when deepspeed is imported
        try:
            import deepspeed  # noqa: F401
        except ImportError as error:
            msg = 'optimizer.kind is deepspeed, which needs another package: pip install "holdfast-lm[deepspeed]"'
            raise ConfigurationError(msg) from error
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

        AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  of an earlier run
        whole = complete_config(config, self._own, num_ranks=int(os.environ.get("WORLD_SIZE", "1")))
        _check_async_io(whole["zero_optimization"])
        self._announce_builds(whole["zero_optimization"])
        return Accelerator(
            deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=whole, gradient_accumulation_steps=1),
            kwargs_handlers=[InitProcessGroupKwargs(backend="gloo" if self._device == "cpu" else "nccl")],
        )

    def _announce_builds(self, zero: Mapping[str, Any]) -> None:
        devices = _devices(zero)
        needed = ["deepspeed_shm_comm"] if self._device == "cpu" else []
        needed += ["async_io"] if "nvme" in devices else []
        announce_builds(needed if os.environ.get("LOCAL_RANK", "0") == "0" else ())


_WORLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _devices(zero: Mapping[str, Any]) -> set[str | None]:
    return {(zero.get(part) or {}).get("device") for part in ("offload_optimizer", "offload_param")}


def _check_async_io(zero: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` for offloading to NVMe if DeepSpeed cannot build its I/O extension here."""
    if "nvme" not in _devices(zero):
        return
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        msg = (
            "optimizer.offload is nvme, which needs DeepSpeed's extension async_io, and that cannot be built "
            "here: install libaio with its headers (libaio-dev or libaio-devel), or set optimizer.offload=cpu"
        )
        raise ConfigurationError(msg)


def _make_world_of_one() -> None:
    """Set the environment that torchrun would set for a single process, as DeepSpeed needs a process group."""
    # port 0 is any free port: no other process needs it, and a port found in advance could be taken meanwhile
    os.environ.update(zip(_WORLD, ("0", "0", "1", "127.0.0.1", "0"), strict=True))


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment that a run and Accelerate's plugin change, as a later run would read it."""
    touched = ("ACCELERATE_", "DS_", *_WORLD)
    before = {name: value for name, value in os.environ.items() if name.startswith(touched)}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(touched)]:
            del os.environ[name]
        os.environ.update(before)
