"""Checks of the compute devices: driver, torch, and the device, precision and attention that a run chooses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import warnings
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.driver_version import driver_version
from holdfast.bootstrap.doctor.finding import CheckVerdict, Finding, bad, doubtful, failed, good
from holdfast.configs.sections.base import PluginSettings
from holdfast.domain.built_in import ATTENTION
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.domain.sizes import counted, shown_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.memory_fit import MemoryCapacity

_BF16, _FP8, _FLASH = [8, 0], [8, 9], [8, 0]  # compute capabilities
_MODULE = "holdfast.bootstrap.doctor.device_checks"
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
    from holdfast.bootstrap.adapter_choice.lazy import lazy

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


_LEAST_MEMORY = 2**30  # bytes, for Python, torch and a small model
_LITTLE_MEMORY = 2 * 2**30
_LEAST_ADDRESSES = 2 * 2**30  # of the smallest run, which maps more than it uses
_LEAST_FILES, _FEW_FILES = 256, 1024
_LARGE_SKEW_SECONDS = 900.0  # S3 refuses requests that are signed so far from its own time
_SKEW_SECONDS = 60.0
_OPTIONS_OF_ULIMIT = {"RLIMIT_AS": "-v", "RLIMIT_DATA": "-d"}


def check_memory_room(room: MemoryCapacity, free: float) -> Finding:
    """Return whether the tightest limit of memory leaves enough for the smallest run, and enough of it is ``free``."""
    detail = f"{room.words}, and {shown_size(free)} are free"
    option = _OPTIONS_OF_ULIMIT.get(room.words.partition(" ")[0])
    if room.num_bytes < (_LEAST_MEMORY if option is None else _LEAST_ADDRESSES):
        remedy = f"raise the memory limit of the container or job to {shown_size(_LITTLE_MEMORY)} or more"
        if option is not None:
            remedy = f"run ulimit {option} unlimited before the run"
        return bad("memory", f"{detail}, too little for any run", remedy)
    if min(free, room.num_bytes) < _LITTLE_MEMORY:
        return doubtful("memory", detail, "end other programs, raise the memory limit, or use a smaller model")
    return good("memory", detail)


def check_model_fits(fits: Callable[[], str | None]) -> Finding:
    """Return whether the model of the settings fits; ``fits`` raises ``ConfigurationError`` or returns a shortage."""
    try:
        shortage = fits()
    except ConfigurationError as error:
        return failed("model in memory", error)
    if shortage is not None:
        return doubtful("model in memory", shortage, "use a smaller model or batch, or a machine with more memory")
    return good("model in memory", "nothing in the settings shows that it does not fit")


def check_open_files(soft: int, hard: int, infinity: int = -1) -> Finding:
    """Return whether the limit on open files, ``soft``, which may be raised to ``hard``, is enough for shards."""
    if soft == infinity:
        return good("open files", "no limit")
    highest = 65536 if hard == infinity else hard
    remedy = f"run ulimit -n {min(highest, 65536)} before the run"
    if highest < _FEW_FILES:
        remedy = "have the hard limit of open files raised (nofile in /etc/security/limits.conf)"
    if soft < _LEAST_FILES:
        return bad("open files", f"the limit is {soft}, too few for shards of data", remedy)
    if soft < _FEW_FILES:
        return doubtful("open files", f"the limit is {soft}, so few shards of data stay open", remedy)
    return good("open files", f"the limit is {soft:,}")


def check_threads(granted: int, chosen: str | None, num_processes: int) -> Finding:
    """Return whether ``chosen`` threads (OMP_NUM_THREADS) of each process find ``granted`` processors in all."""
    have = f"{counted(granted, 'processor')} for {counted(num_processes, 'process', 'processes')}"
    if num_processes > granted:
        remedy = f"lower distributed.processes to {granted}, or use a machine with more processors"
        return doubtful("processors", have, remedy)
    if chosen is None:
        return good("processors", have)
    share = max(1, granted // num_processes)
    if not chosen.split(",")[0].strip().isdigit() or int(chosen.split(",")[0]) < 1:
        return doubtful("processors", f"OMP_NUM_THREADS is {chosen!r}, which is no number", "unset OMP_NUM_THREADS")
    wanted = int(chosen.split(",")[0])
    if wanted > share:
        detail = f"OMP_NUM_THREADS is {wanted} in each process, but there are {have}"
        return doubtful("processors", detail, f"unset OMP_NUM_THREADS, or set it to {share}")
    return good("processors", f"{have}, and OMP_NUM_THREADS is {wanted}")


def check_loopback(bind: Callable[[str, int], object]) -> Finding:
    """Return whether processes on this machine can listen at its loopback address; ``bind`` raises ``OSError``."""
    try:
        bind("127.0.0.1", 0)
    except OSError as error:
        remedy = "allow sockets on 127.0.0.1 in the sandbox or container (ip link set lo up)"
        return bad("loopback", f"no port can be opened: {error.strerror or error}", remedy)
    return good("loopback", "ports can be opened")


def check_host_name(
    name: str, resolve: Callable[[str], str], bind: Callable[[str, int], object], num_processes: int
) -> Finding:
    """Return whether the host ``name`` leads to an address of this machine, at which ranks meet."""
    remedy = f"add a line '127.0.0.1 {name}' to /etc/hosts, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
    verdict = bad if num_processes > 1 else doubtful
    try:
        address = resolve(name)
    except OSError as error:
        return verdict("host name", f"{name} is not found: {error.strerror or error}", remedy)
    try:
        bind(address, 0)
    except OSError:
        return verdict("host name", f"{name} leads to {address}, which is no address of this machine", remedy)
    return good("host name", f"{name} leads to {address}")


def check_port(setting: str, host: str, port: int, bind: Callable[[str, int], object], *, is_needed: bool) -> Finding:
    """Return whether ``port`` is free, at which a monitor would listen."""
    try:
        bind(host, port)
    except OSError as error:
        verdict = bad if is_needed else doubtful
        detail = f"port {port} at {host} cannot be used: {error.strerror or error}"
        return verdict(setting, detail, f"end the program that uses it, or set {setting} to 0 for any free port")
    return good(setting, f"port {port} at {host} is free")


def check_processes(number: int, num_gpus: int, *, on_gpu: bool) -> Finding:
    """Return whether each of ``number`` processes has a GPU, if they train on GPUs."""
    if on_gpu and number > num_gpus:
        detail = f"{number} on this machine, which has {counted(num_gpus, 'GPU')}"
        return bad("processes", detail, f"set distributed.processes to {max(1, num_gpus)}, or to auto")
    return good("processes", f"{number} on this machine")


def check_clock(
    now: float, installed: float, newest: float, server: tuple[str, float] | None, *, needs_network: bool
) -> Finding:
    """Return whether ``now`` is plausible; all times are in seconds since 1970.

    It is not before the package was ``installed``, nor before the ``newest`` file of the run, and agrees with the time
    of a ``server``, a name and its time, if one answered. A wrong clock is an error if the run ``needs_network``, as
    certificates and signatures are refused.
    """
    remedy = "set the clock (timedatectl set-ntp true, or chronyc makestep)"
    verdict = bad if needs_network else doubtful
    shown = _shown(now)
    if now < installed - _SKEW_SECONDS:
        return verdict("clock", f"{shown}, before this package was installed at {_shown(installed)}", remedy)
    if server is not None and (skew := now - server[1]) and abs(skew) > _SKEW_SECONDS:
        direction = "ahead of" if skew > 0 else "behind"
        detail = f"{shown}, {abs(skew):,.0f} s {direction} {server[0]}"
        return (bad if abs(skew) > _LARGE_SKEW_SECONDS else doubtful)("clock", detail, remedy)
    if now < newest - _SKEW_SECONDS:
        detail = f"{shown}, before the newest file of the run at {_shown(newest)}"
        return doubtful("clock", detail, f"{remedy}, or that of the machine that wrote the file")
    agrees = "" if server is None else f", as {server[0]} says"
    return good("clock", f"{shown}{agrees}")


def bind_briefly(host: str, port: int) -> None:
    """Listen at ``host`` and ``port`` for a moment; raises ``OSError`` if that is not possible."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(1)


def _shown(time: float) -> str:
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{time:.0f} s since 1970"


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    found = torch_facts(wanted["device"], wanted["precision"], wanted["attention"], wanted["compile"])
    print(json.dumps(found))  # noqa: T201  the parent reads it
