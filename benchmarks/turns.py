"""Ways that take turns, each in a process of its own, so that none shares another's heap or threads."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, final

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


class WayEndedError(Exception):
    """A way ended before its last turn; what it wrote last is the message."""


@final
class Contender:
    """A way in a process of its own, which stands still but for its turns.

    ``module`` is run with the way's ``name`` and ``plan``, as JSON; it sees a GPU only if ``has_gpu``. Raises
    ``WayEndedError`` if the process ends where an answer was due.
    """

    def __init__(self, module: str, name: str, plan: Mapping[str, Any], *, has_gpu: bool = False) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, json.dumps(plan)],
            env=_ENVIRONMENT | os.environ | {"CUDA_VISIBLE_DEVICES": _first_gpu() if has_gpu else ""},
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self._answer()  # it is ready
        except WayEndedError:
            self.__exit__()
            raise

    def ask(self, command: str) -> dict[str, Any]:
        """Let it take a turn; return what it found."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        return self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            message = f"{self.name} ended with code {self._process.returncode}:\n{self._errors.read()[-4000:]}"
            raise WayEndedError(message)
        # threads of OpenMP spin for a while behind their work, and batches are read ahead: in the others' time
        self._process.send_signal(signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        return found


@final
class Answers:
    """The other end, in the process of the way."""

    def __init__(self) -> None:
        self._out: IO[str] = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints must not look like an answer

    def give(self, found: Mapping[str, Any]) -> str:
        """Answer with ``found``; return the next command."""
        print(json.dumps(found), file=self._out, flush=True)
        command = sys.stdin.readline().strip()
        if not command:
            os._exit(0)  # nobody waits for what is left
        return command


def end_with_parent() -> None:
    """Have Linux kill this process with the one that started it: a way would stand still for ever without."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _first_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
