"""Prints what torch can do on this machine, as JSON, in a process of its own: a driver may crash it or hang."""

from __future__ import annotations

import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.driver_version import driver_version
from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def torch_facts(device: str | None, precision: str, attention: str | None, compiled: str) -> Mapping[str, Any]:
    """Return the versions, the GPUs, and the device, precision and attention that a run with these settings chooses.

    A choice that is not possible has its sentence under ``refused``, and so has torch.compile if a tool is missing.
    Without ``device`` an adapter of another package chooses it, without ``attention`` the model is not one of
    transformers; ``compiled`` is the mode of torch.compile.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch

        facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "refused": {}}
        facts["gpus"] = [_gpu(number) for number in range(torch.cuda.device_count())] if _has_cuda(facts) else []
    facts["warnings"] = [str(each.message).split("\n", 1)[0] for each in caught if "CUDA" in str(each.message)]
    facts["driver"], facts["cuda_of_driver"] = driver_version()
    if device is not None:
        from holdfast.adapters.shared.device.device_selection import choose_device, choose_precision

        chosen = _choice(facts, "device", lambda: choose_device(device))
        if chosen is not None:
            computed = _choice(facts, "precision", lambda: choose_precision(precision, chosen))
            if attention is not None and computed is not None:
                _choose_attention(facts, attention, chosen, computed)
            if compiled != "none":
                _check_compile(facts, compiled, chosen)
    return facts


def _choose_attention(facts: dict[str, Any], attention: str, device: str, precision: str) -> None:
    from holdfast.bootstrap.wiring.lazy import lazy

    choose = lazy("holdfast.adapters.shared.modeling.attention:choose_attention")
    computed = "bf16" if precision == "fp8" else precision
    _choice(facts, "attention", lambda: choose(attention, device, computed))


def _check_compile(facts: dict[str, Any], mode: str, device: str) -> None:
    from holdfast.adapters.shared.modeling.torch_compile import check_tools

    def choose() -> tuple[str, str]:
        check_tools(device)
        return mode, "torch has the tools to compile here"

    facts["may_run_eager"] = mode == "auto"
    _choice(facts, "compile", choose)


def _choice(facts: dict[str, Any], name: str, choose: Callable[[], tuple[str, str]]) -> str | None:
    try:
        facts[name], facts[f"{name}_reason"] = choose()
    except TrainingError as error:
        facts["refused"][name] = str(error)
        return None
    return str(facts[name])


def _has_cuda(facts: dict[str, Any]) -> bool:
    import torch

    facts["has_cuda"] = torch.cuda.is_available()
    return bool(facts["has_cuda"])


def _gpu(number: int) -> Mapping[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(number)
    return {
        "name": properties.name,
        "bytes": properties.total_memory,
        "capability": [properties.major, properties.minor],
    }


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    found = torch_facts(wanted["device"], wanted["precision"], wanted["attention"], wanted["compile"])
    print(json.dumps(found))  # noqa: T201  the parent reads it
