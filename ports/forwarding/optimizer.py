"""Base classes that forward to a trainable and to its updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, SupportsFloat

from typing_extensions import override

from holdfast.ports.optimizer import Hardware, HasOwnEnds, Trainable, Update
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart


class ForwardingUpdate(Update):
    """Takes the step of ``inner``."""

    def __init__(self, inner: Update) -> None:
        self.inner = inner

    @override
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        return self.inner.accumulate(part, weight=weight, last=last)

    @override
    def apply(self) -> SupportsFloat:
        return self.inner.apply()

    @override
    def figures(self) -> Mapping[str, SupportsFloat]:
        return self.inner.figures()

    @override
    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inner.__exit__(kind, error, trace)


class ForwardingTrainable(Trainable, HasOwnEnds):
    """Trains with ``inner``."""

    def __init__(self, inner: Trainable) -> None:
        self.inner = inner

    @property
    @override
    def hardware(self) -> Hardware:
        return self.inner.hardware

    @property
    @override
    def is_retry_safe(self) -> bool:
        return self.inner.is_retry_safe

    @property
    @override
    def memory_retries(self) -> int:
        return self.inner.memory_retries

    @property
    @override
    def is_sharded(self) -> bool:
        return self.inner.is_sharded

    @property
    @override
    def num_positions(self) -> int | None:
        return self.inner.num_positions

    @property
    @override
    def own_ends(self) -> Sequence[int]:
        return self.inner.own_ends if isinstance(self.inner, HasOwnEnds) else ()

    @override
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes()

    @override
    def update(self, *, step: int, learning_rate: float) -> Update:
        return self.inner.update(step=step, learning_rate=learning_rate)

    @override
    def evaluate(self, batch: Batch) -> SupportsFloat:
        return self.inner.evaluate(batch)

    @override
    def evaluate_pieces(self, batch: Batch) -> tuple[SupportsFloat, NDArray[np.float64]]:
        return self.inner.evaluate_pieces(batch)

    @override
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        return self.inner.sum_over_ranks(losses)

    @override
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        return self.inner.generate(prompt, sampling, end_of_text=end_of_text)

    @override
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        self.inner.stream(prompt, sampling, end_of_text=end_of_text, tell=tell)

    @override
    def capture(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        return self.inner.capture(copy=copy)

    @override
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        self.inner.restore(folder, weights_only=weights_only, open_file=open_file)
