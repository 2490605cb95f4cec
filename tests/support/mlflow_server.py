"""A real MLflow server process."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTHON = Path(os.environ.get("MLFLOW_PYTHON", sys.executable))
"""The interpreter that has the package ``mlflow``, which the client's package is only a part of."""


class MlflowServer:
    """A server at ``uri`` with a SQLite database in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start the server; return once it answers."""
        command = [
            str(_PYTHON), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db",
            "--artifacts-destination", str(self._folder / "artifacts"),
        ]  # fmt: skip
        self._log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, start_new_session=True, cwd=self._folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )  # fmt: skip
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.2)
        self.kill()
        raise AssertionError((self._folder / "log").read_text())

    def kill(self) -> None:
        """End the server and its workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._log.close()


def _is_installed(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    """Yield a server; skip the test if the package ``mlflow`` is not installed."""
    if Path(sys.executable) == _PYTHON and not _is_installed("mlflow"):
        pytest.skip(
            "there is no MLflow server here: install the package mlflow, and name its interpreter MLFLOW_PYTHON"
        )
    if shutil.which(str(_PYTHON)) is None:
        pytest.skip(f"MLFLOW_PYTHON names {_PYTHON}, which is no interpreter")
    server = MlflowServer(folder)
    try:
        yield server
    finally:
        server.kill()
