"""Checks of the compute devices: driver, torch, and the device, precision and attention that a run chooses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.doctor.finding import CheckVerdict, Finding, bad, doubtful, good
from holdfast.configs.sections.base import PluginSettings
from holdfast.domain.built_in import ATTENTION
from holdfast.domain.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.configs.settings import TrainSettings

_BF16, _FP8, _FLASH = [8, 0], [8, 9], [8, 0]  # compute capabilities
_MODULE = "holdfast.bootstrap.doctor.torch_facts"
_REINSTALL = "install torch again (pip install --force-reinstall torch)"
_REMEDIES = {
    "temporary directory": "set TMPDIR to a folder that can be written",
    "no answer": "try again on a less busy machine; if it never answers, check its driver with nvidia-smi",
}
"""By words of the failure."""


def probe_torch(settings: TrainSettings, seconds: float) -> Mapping[str, Any]:
    """Return the facts of ``torch_facts`` for ``settings`` from another process, which may take ``seconds``.

    If that process fails, the facts are its last line under ``failed``.
    """
    model = settings.model
    has_attention = not isinstance(model, PluginSettings) and model.attention in ("auto", *ATTENTION)
    wanted = {
        "device": settings.optimizer.device,
        "precision": settings.optimizer.precision,
        "attention": model.attention if has_attention else None,
        "compile": model.compile,
    }
    command = [sys.executable, "-m", _MODULE, json.dumps(wanted)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {seconds:g} s"}
    lines = process.stdout.strip().splitlines()
    if process.returncode == 0 and lines:
        facts: Mapping[str, Any] = json.loads(lines[-1])
        return facts
    said = process.stderr.strip().splitlines() or [f"it ended with code {process.returncode}"]
    return {"failed": said[-1]}


def _remedy_of(failure: str) -> str:
    other = f"raise the memory limit if there is one (ulimit -v), or {_REINSTALL}"
    return next((remedy for words, remedy in _REMEDIES.items() if words in failure), other)


def judge_devices(facts: Mapping[str, Any], *, is_asked_for_gpu: bool) -> Iterator[Finding]:
    """Yield the findings on the ``facts`` that ``probe_torch`` returned."""
    if "failed" in facts:
        remedy = _remedy_of(facts["failed"])
        yield bad("torch starts", f"torch cannot be used: {facts['failed']}", remedy)
        return
    yield from _driver(facts, is_asked_for_gpu=is_asked_for_gpu)
    for number, gpu in enumerate(facts["gpus"]):
        yield good(f"GPU {number}", f"{gpu['name']}, {shown_size(gpu['bytes'])}: {_abilities(gpu['capability'])}")
    for name in ("device", "precision", "attention", "compile"):
        if name in facts["refused"]:
            detail, _, remedy = facts["refused"][name].rpartition(": ")
            is_optional = name == "compile" and facts["may_run_eager"]
            yield (doubtful if is_optional else bad)(name, detail, remedy)
        elif name in facts:
            yield good(name, f"{facts[name]}: {facts[f'{name}_reason']}")


def _driver(facts: Mapping[str, Any], *, is_asked_for_gpu: bool) -> Iterator[Finding]:
    if facts["driver"] is None:
        if is_asked_for_gpu and not facts["has_cuda"]:
            remedy = "install NVIDIA's driver, or start the container with its GPUs (--gpus all)"
            yield bad("driver", "there is no driver of NVIDIA", remedy)
        return
    detail = f"{facts['driver']}, which supports CUDA {facts['cuda_of_driver']}"
    verdict = CheckVerdict.ERROR if is_asked_for_gpu else CheckVerdict.WARNING
    if facts["cuda"] is None:
        remedy = "install a build of torch with CUDA: https://pytorch.org/get-started/locally"
        yield Finding("driver", verdict, f"{detail}, but torch {facts['torch']} was built without CUDA", remedy)
    elif _major(facts["cuda_of_driver"]) < _major(facts["cuda"]):
        remedy = f"update the driver, or install a build of torch for CUDA {_major(facts['cuda_of_driver'])}"
        yield Finding("driver", verdict, f"{detail}, but torch was built for CUDA {facts['cuda']}", remedy)
    elif not facts["has_cuda"]:
        said = f": {facts['warnings'][0]}" if facts["warnings"] else ""
        remedy = "check CUDA_VISIBLE_DEVICES and nvidia-smi"
        yield Finding("driver", verdict, f"{detail}, but torch finds no GPU{said}", remedy)
    else:
        yield good("driver", f"{detail}; torch was built for CUDA {facts['cuda']}")


def _abilities(capability: list[int]) -> str:
    abilities = {"bf16": _BF16, "fp8": _FP8, "flash attention": _FLASH}
    return ", ".join(name if capability >= least else f"no {name}" for name, least in abilities.items())


def _major(version: str) -> int:
    return int(version.partition(".")[0])
