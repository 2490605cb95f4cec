"""Troubles of a machine, each planted for real where that is possible, and the finding that a check gives on it."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from holdfast.bootstrap.doctor.finding import CheckVerdict, Finding
from holdfast.configs.settings_layers import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from holdfast.configs.settings import TrainSettings

    Plant = Callable[[Path, pytest.MonkeyPatch], Finding]

GB = 10**9
YEAR = 365 * 86_400.0
TROUBLES: dict[str, Trouble] = {}
FACTS = {
    "torch": "2.13.0+cu128",
    "cuda": "12.8",
    "has_cuda": True,
    "gpus": [],
    "warnings": [],
    "driver": "570.10",
    "cuda_of_driver": "12.8",
    "refused": {},
}


@dataclass(frozen=True)
class Trouble:
    """What ``plant`` finds has ``verdict``, and its remedy names ``remedy``."""

    plant: Plant
    verdict: CheckVerdict
    remedy: str


def trouble(verdict: str, remedy: str) -> Callable[[Plant], Plant]:
    """Enter the decorated function among ``TROUBLES``."""

    def enter(plant: Plant) -> Plant:
        TROUBLES[plant.__name__] = Trouble(plant, CheckVerdict(verdict), remedy)
        return plant

    return enter


def settings_of(*values: str) -> TrainSettings:
    """Return the defaults with ``values``."""
    return load_settings([], values, {}).settings


def named(name: str, findings: Iterable[Finding]) -> Finding:
    """Return the finding that is called ``name``."""
    found = [*findings]
    (one,) = (each for each in found if each.name == name)
    return one


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount at the new ``folder`` what ``options`` of mount say; skips the test if that is not allowed."""
    folder.mkdir()
    command = ["mount", *options, str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def closed_port() -> int:
    """Return a port of loopback at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Answers(http.server.BaseHTTPRequestHandler):
    status, shift = 200, 0.0

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.shift)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def http_server(*, status: int = 200, shift: float = 0.0) -> Iterator[str]:
    """Yield the URL of a server that answers with ``status``, and whose clock is ``shift`` seconds ahead."""
    handler = type("Handler", (_Answers,), {"status": status, "shift": shift})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
