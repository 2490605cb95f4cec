"""Ways of training that take turns, each in a process of its own, so that none shares another's heap or threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, SupportsFloat, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


@final
@dataclass(frozen=True, slots=True)
class Turn:
    """What came out of a turn: its length, the tokens read (padding left out), each step's mean loss, the peak."""

    seconds: float
    tokens: int
    losses: tuple[float, ...]
    memory_bytes: int = 0


class WayEndedError(Exception):
    """A way of training ended before its last turn; what it wrote last is the message."""


@final
class Way:
    """A way of training in a process of its own, which stands still but for its turns.

    ``a_turn`` are the steps of a turn; ``has_gpu`` says whether the process sees one. Raises ``WayEndedError`` if the
    process does not come to where it takes turns, as ``turn`` does if it does not come to a turn's end.
    """

    def __init__(
        self,
        name: str,
        overrides: Sequence[str],
        *,
        steps: int,
        a_turn: int = 1,
        has_gpu: bool = False,
        documents: bool = False,
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        plan = {"overrides": list(overrides), "steps": steps, "a_turn": a_turn, "documents": documents}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train.child", name, json.dumps(plan)],
            env=_ENVIRONMENT | os.environ | {"CUDA_VISIBLE_DEVICES": _first_gpu() if has_gpu else ""},
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self._line()  # it is ready
        except WayEndedError:
            self.__exit__()
            raise
        self._rest()

    def turn(self) -> Turn:
        """Let it take the steps of a turn."""
        self._process.send_signal(signal.SIGCONT)
        print("go", file=self._stdin, flush=True)
        found = self._line()
        self._rest()
        return Turn(**{**found, "losses": tuple(found["losses"])})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _rest(self) -> None:
        # threads of OpenMP spin for a while behind a step, and batches are read ahead: in the others' time
        self._process.send_signal(signal.SIGSTOP)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            message = f"{self.name} ended with code {self._process.returncode}:\n{self._errors.read()[-4000:]}"
            raise WayEndedError(message)
        found: dict[str, Any] = json.loads(line)
        return found


def _first_gpu() -> str:
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


@final
class Turns:
    """The other end, in the process that trains: the clock runs from the word to go until the turn's last step."""

    def __init__(self, a_turn: int, *, finish: Callable[[], object], memory: Callable[[], int]) -> None:
        self._a_turn = a_turn
        self._finish = finish
        self._memory = memory
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints must not look like an answer
        self._losses: list[SupportsFloat] = []
        self._tokens = 0
        self._began = 0.0

    def begin(self) -> None:
        """Say that all is ready, and wait for the first turn."""
        self._answer({})

    def step_ends(self, loss: SupportsFloat, tokens: int) -> None:
        """Count a step; behind the turn's last one, wait for the next turn."""
        self._losses.append(loss)
        self._tokens += tokens
        if len(self._losses) < self._a_turn:
            return
        self._finish()
        seconds = time.perf_counter() - self._began
        losses = tuple(float(loss) for loss in self._losses)
        self._losses.clear()
        tokens, self._tokens = self._tokens, 0
        self._answer(asdict(Turn(seconds, tokens, losses, self._memory())))

    def _answer(self, found: dict[str, Any]) -> None:
        print(json.dumps(found), file=self._answers, flush=True)
        if not sys.stdin.readline():
            os._exit(0)  # nobody waits for what is left
        self._began = time.perf_counter()
