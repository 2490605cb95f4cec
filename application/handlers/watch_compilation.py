"""Reports the time that compiling a model takes, and repeated compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.events import StepCompleted


class Compilations(Protocol):
    """The compilations of this process so far: pieces of code, repeated compilations, and the time spent."""

    @property
    def graphs(self) -> int:
        """Return the number of compilations."""

    @property
    def recompiles(self) -> int:
        """Return the number of compilations of code that had been compiled before, for other shapes or values."""

    @property
    def seconds(self) -> float:
        """Return the seconds spent on compilation."""


@final
class WatchCompilation:
    """Logs the cost of compilation after the first step without any, and warns once if later steps compile again."""

    def __init__(self, compilations: Compilations, log_line: Callable[[str], object]) -> None:
        self._compilations = compilations
        self._log_line = log_line
        self._graphs = self._warm_up = 0
        self._is_warm = self._has_warned = False

    def __call__(self, event: StepCompleted) -> None:
        """Compare the compilations with those up to the step before."""
        found, step = self._compilations, event.progress.step
        grew, self._graphs = found.graphs > self._graphs, found.graphs
        if not self._is_warm and grew:
            self._warm_up += 1
        elif not self._is_warm:
            self._is_warm = True
            self._log_line(
                f"step {step} · warm-up is over: {found.graphs} graphs were compiled in {found.seconds:.1f} s, "
                f"within {self._warm_up} steps"
            )
        elif grew and not self._has_warned:
            self._has_warned = True
            self._log_line(
                f"step {step} · layers were compiled again ({found.recompiles} times so far), as a batch has another "
                "shape: make optimizer.batch_size a multiple of optimizer.micro_batch, or, if the metric recompiles "
                "keeps growing, set model.compile=none"
            )
