"""Turns of the threads that generate text, as they share torch's random state."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Condition
from typing import TYPE_CHECKING, Self, final

import torch

if TYPE_CHECKING:
    from types import TracebackType


@final
class RandomTurn:
    """A random state of its own for one text, seeded by ``seed``, in a ``with`` block that one thread at a time is in.

    ``pass_on`` lets a waiting thread go first, in the order of their arrival, and then continues with the same draws.
    Outside the blocks the random state of the process is as if nothing had been drawn.
    """

    _condition = Condition()
    _num_arrived = 0
    _num_left = 0

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._outer = ExitStack()

    def pass_on(self) -> None:
        """Let the next thread go first, if one waits."""
        if RandomTurn._num_arrived - RandomTurn._num_left == 1:
            return
        states = self._states()
        self._leave()
        self._arrive()
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self._device)

    def __enter__(self) -> Self:
        """Wait for the turn."""
        self._arrive()
        torch.manual_seed(self._seed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the turn."""
        self._leave()

    def _states(self) -> list[torch.Tensor]:
        """Return the random states, uint8, of the CPU and of a CUDA device."""
        on_device = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [torch.get_rng_state(), *on_device]

    def _arrive(self) -> None:
        with self._condition:
            number = RandomTurn._num_arrived
            RandomTurn._num_arrived += 1
            self._condition.wait_for(lambda: RandomTurn._num_left == number)
        self._outer.enter_context(torch.random.fork_rng())

    def _leave(self) -> None:
        self._outer.close()
        with self._condition:
            RandomTurn._num_left += 1
            self._condition.notify_all()
