"""The turns of ways of training."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, SupportsFloat, final

from benchmarks.turns import Answers, Contender

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@final
@dataclass(frozen=True, slots=True)
class Turn:
    """What came out of a turn: its length, the tokens read (padding left out), each step's mean loss, the peak."""

    seconds: float
    tokens: int
    losses: tuple[float, ...]
    memory_bytes: int = 0


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
        tuned: bool = False,
    ) -> None:
        self.name = name
        plan = {"overrides": list(overrides), "steps": steps, "a_turn": a_turn, "documents": documents, "tuned": tuned}
        self._contender = Contender("benchmarks.train.child", name, plan, has_gpu=has_gpu)

    def turn(self) -> Turn:
        """Let it take the steps of a turn."""
        found = self._contender.ask("go")
        return Turn(**{**found, "losses": tuple(found["losses"])})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._contender.__exit__()


@final
class Turns:
    """The other end, in the process that trains: the clock runs from the word to go until the turn's last step."""

    def __init__(self, a_turn: int, *, finish: Callable[[], object], memory: Callable[[], int]) -> None:
        self._a_turn = a_turn
        self._finish = finish
        self._memory = memory
        self._answers = Answers()
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
        self._answers.give(found)
        self._began = time.perf_counter()
