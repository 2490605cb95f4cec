"""The engine that Accelerate's launcher asks for by the environment, which the settings choose here."""

from __future__ import annotations

import logging
import os
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "ACCELERATE_USE_DEEPSPEED": "set optimizer.kind=deepspeed",
        "ACCELERATE_USE_FSDP": "set optimizer.sharding=fsdp2",
        "ACCELERATE_USE_MEGATRON_LM": "set distributed.mesh, as there is no Megatron-LM",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "set distributed.mesh",
        "ACCELERATE_USE_SAGEMAKER": "start the processes with torchrun",
        "ACCELERATE_DYNAMO_BACKEND": "set model.compile",
        "ACCELERATE_TORCH_DEVICE": "set optimizer.device",
    }
)
_UNUSED: Mapping[str, str] = MappingProxyType(
    {
        "ACCELERATE_MIXED_PRECISION": "optimizer.precision",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "optimizer.batch_size and optimizer.micro_batch",
        "ACCELERATE_GRADIENT_CLIPPING": "optimizer.clip",
        "ACCELERATE_USE_CPU": "optimizer.device",
    }
)
_OFF = frozenset({"", "0", "1", "false", "no", "none", "n", "f", "off"})
"""Values that ask for nothing; one step of accumulation is none."""
_FLAGS_OFF = _OFF - {"1"}


def refuse_launched_engine(own: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigurationError`` if a variable of ``accelerate launch`` other than ``own`` asks for another engine.

    Variables in whose place the settings count are logged.
    """
    for name, remedy in _REMEDIES.items():
        if name != own and (value := environment.get(name, "")).lower() not in _FLAGS_OFF:
            msg = (
                f"the environment has {name}={value}, as accelerate launch sets it, and the settings choose the engine "
            )
            raise ConfigurationError(msg + f"here: {remedy}, and unset {name}")
    for name, setting in _UNUSED.items():
        if (value := environment.get(name, "")).lower() not in _OFF:
            _log.warning("the environment has %s=%s, which is not used: %s counts", name, value, setting)
