"""Troubles of software, devices and limits, planted for the checks of ``doctor``."""

from __future__ import annotations

import os
import socket
import time
from types import SimpleNamespace

import psutil
from packaging.requirements import Requirement

from holdfast.adapters.shared.device.memory_gauge import host_room
from holdfast.bootstrap.doctor import (
    device_checks,
    diagnosis,
    needed_extras,
)
from holdfast.bootstrap.doctor.diagnosis import perform_together
from holdfast.bootstrap.doctor.finding import Check
from holdfast.bootstrap.doctor.named_places import data_places
from holdfast.bootstrap.doctor.needed_extras import check_plugins
from holdfast.bootstrap.stages.choose.memory_check import refuse_from_settings
from holdfast.domain.training.memory_fit import MemoryCapacity
from tests.support.planted_troubles import (
    FACTS,
    GB,
    YEAR,
    named,
    settings_of,
    trouble,
)


@trouble("error", 'pip install "holdfast-lm[s3]"')
def missing_extra(tmp_path, monkeypatch):
    needed = needed_extras.needed_extras(settings_of("data.path=s3://bucket/texts/*.jsonl"))
    wanted = [Requirement('s3fs>=2025.3; extra == "s3"'), Requirement('gcsfs>=2025.3; extra == "gcs"')]
    return named("extra s3", needed_extras.check_extras(needed, wanted, lambda _: None))


@trouble("error", 'pip install "torch')
def other_torch(tmp_path, monkeypatch):
    return next(needed_extras.check_packages([Requirement("torch<2.14,>=2.11")], lambda _: "2.9.1+cu126"))


@trouble("warning", "pip install -e .")
def checkout_without_installation(tmp_path, monkeypatch):
    needs_extra = settings_of("data.path=s3://bucket/texts/*.jsonl")
    with monkeypatch.context() as patch:  # what is documented is looked up in the real package
        for module in (needed_extras, diagnosis):
            patch.setattr(module, "PACKAGE", "holdfast-lm-that-is-not-installed")
        (finding,) = perform_together(diagnosis.version_checks(needs_extra, 5.0))
    return finding


@trouble("error", "install Python >=3.11")
def old_python(tmp_path, monkeypatch):
    return needed_extras.check_python(">=3.11", "3.10.4")


@trouble("error", "correct optimizer.kind")
def missing_plugin(tmp_path, monkeypatch):
    return named("optimizer.kind", check_plugins(settings_of("optimizer.kind=somebody_elses")))


@trouble("error", "pip install liger-kernel")
def missing_liger(tmp_path, monkeypatch):
    monkeypatch.setattr(needed_extras, "find_spec", lambda _: None)
    return named("model.loss", check_plugins(settings_of("model.loss=liger")))


@trouble("error", "set HOLDFAST_KEY")
def missing_key(tmp_path, monkeypatch):
    chosen = settings_of("state_store.encryption.key_from=env:HOLDFAST_KEY")
    return named("state_store.encryption.key_from", needed_extras.check_secrets(chosen, {}))


@trouble("error", "raise the memory limit of the container")
def memory_limit_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(str(600 * 10**6))
    (tmp_path / "membership").write_text("0::/\n")
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=0))  # which counts as memory
    room = host_room(cgroup=tmp_path, membership=tmp_path / "membership")
    return device_checks.check_memory_room(room, 20 * GB)


@trouble("error", "ulimit -v unlimited")
def address_space_of_1_gb(tmp_path, monkeypatch):
    room = MemoryCapacity(0.7 * GB, "RLIMIT_AS is 1.0 GiB, of which 700.0 MiB are left")
    return device_checks.check_memory_room(room, 20 * GB)


@trouble("error", "at most")
def model_that_does_not_fit(tmp_path, monkeypatch):
    chosen = settings_of("model.config.hidden_size=65536", "model.config.intermediate_size=262144")
    return device_checks.check_model_fits(lambda: refuse_from_settings(chosen, 1))


@trouble("error", "ulimit -n 65536")
def few_open_files(tmp_path, monkeypatch):
    return device_checks.check_open_files(128, 1 << 20)


@trouble("warning", "unset OMP_NUM_THREADS, or set it to 2")
def more_threads_than_processors(tmp_path, monkeypatch):
    return device_checks.check_threads(4, "16", 2)


@trouble("error", "distributed.processes to 2")
def more_processes_than_gpus(tmp_path, monkeypatch):
    return device_checks.check_processes(8, 2, on_gpu=True)


@trouble("error", "/etc/hosts")
def unknown_host_name(tmp_path, monkeypatch):
    return device_checks.check_host_name("no-such-host.invalid", socket.gethostbyname, device_checks.bind_briefly, 2)


@trouble("warning", "GLOO_SOCKET_IFNAME")
def host_name_of_another_machine(tmp_path, monkeypatch):
    bind = device_checks.bind_briefly
    return device_checks.check_host_name("node1", lambda _: "192.0.2.7", bind, 1)  # an address of no machine


@trouble("error", "end the program that uses it")
def taken_port(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        bind = device_checks.bind_briefly
        return device_checks.check_port("monitors.prometheus.port", "127.0.0.1", port, bind, is_needed=True)


@trouble("error", "timedatectl")
def clock_of_the_past(tmp_path, monkeypatch):
    now = time.time()
    return device_checks.check_clock(now - 3 * YEAR, now, 0.0, None, needs_network=True)


@trouble("warning", "that of the machine that wrote the file")
def files_of_the_future(tmp_path, monkeypatch):
    (tmp_path / "events.jsonl").touch()
    os.utime(tmp_path / "events.jsonl", (time.time() + 7200, time.time() + 7200))
    (finding,) = diagnosis.look_at_clock(settings_of(f"run.dir={tmp_path}"), 5.0)
    return finding


@trouble("error", "set TMPDIR to a folder that can be written")
def torch_without_temporary_files(tmp_path, monkeypatch):
    failed = "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/']"
    return named("torch starts", device_checks.judge_devices({"failed": failed}, is_asked_for_gpu=False))


@trouble("error", "less busy machine")
def torch_without_an_answer(tmp_path, monkeypatch):
    facts = device_checks.probe_torch(settings_of("optimizer.device=cpu"), 0.01)
    return named("torch starts", device_checks.judge_devices(facts, is_asked_for_gpu=False))


@trouble("warning", "pip uninstall holdfast holdfast-lm")
def former_distribution(tmp_path, monkeypatch):
    return named("packages", needed_extras.check_packages([], {"holdfast": "0.1", "holdfast-lm": "0.2"}.get))


@trouble("warning", "build of torch with CUDA")
def torch_without_cuda(tmp_path, monkeypatch):
    facts = {**FACTS, "torch": "2.13.0+cpu", "cuda": None, "has_cuda": False}
    return named("driver", device_checks.judge_devices(facts, is_asked_for_gpu=False))


@trouble("error", "update the driver")
def old_driver(tmp_path, monkeypatch):
    facts = {**FACTS, "has_cuda": False, "driver": "470.82", "cuda_of_driver": "11.4"}
    return named("driver", device_checks.judge_devices(facts, is_asked_for_gpu=True))


@trouble("error", "set optimizer.precision=auto")
def fp8_without_a_gpu(tmp_path, monkeypatch):
    chosen = settings_of("optimizer.precision=fp8", "optimizer.device=cpu")
    facts = device_checks.probe_torch(chosen, 100)
    return named("precision", device_checks.judge_devices(facts, is_asked_for_gpu=False))


@trouble("warning", "model.compile=none")
def missing_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    facts = device_checks.probe_torch(settings_of("optimizer.device=cpu"), 100)
    return named("compile", device_checks.judge_devices(facts, is_asked_for_gpu=False))


@trouble("error", "remove the cause")
def check_that_fails(tmp_path, monkeypatch):
    (finding,) = perform_together([Check("memory", lambda: data_places(None))])  # type: ignore[arg-type]
    return finding
