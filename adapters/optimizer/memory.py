"""Gradient descent with momentum on a bigram model in numpy: exact, fast, and out of memory on request."""

from __future__ import annotations

import math
from io import BytesIO
from typing import TYPE_CHECKING, Self, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.shared.tensor_state.file_parts import InMemoryPart, read_whole
from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.domain.errors import NonFiniteGradients, OutOfMemory, StateError
from holdfast.ports.basic import BasicTrainable, BasicUpdate
from holdfast.ports.optimizer import Hardware, Optimizer, Trainable, Update
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.state_store import OpenFile, StatePart

_MOMENTUM = 0.9
_FILE = "bigram.npy"


@final
class MemoryOptimizer(Optimizer[BigramModel]):
    """Trains a ``BigramModel``; parts of more than ``max_rows`` rows raise ``OutOfMemory``."""

    def __init__(self, *, max_rows: int | None = None) -> None:
        self._max_rows = max_rows

    @override
    def prepare(self, model: BigramModel) -> Trainable:
        return _MemoryTrainable(model, self._max_rows)


@final
class _MemoryTrainable(BasicTrainable):
    def __init__(self, model: BigramModel, max_rows: int | None) -> None:
        self.model = model
        self.velocity = np.zeros_like(model.logits)
        self.max_rows = max_rows

    @property
    @override
    def hardware(self) -> Hardware:
        return Hardware("memory", "fp64", self.model.logits.size, 6.0 * self.model.logits.size)

    @override
    def memory_bytes(self) -> int:
        return 2 * self.model.logits.nbytes

    @override
    def update(self, *, step: int, learning_rate: float) -> Update:
        return _MemoryUpdate(self, learning_rate)

    @override
    def evaluate(self, batch: Batch) -> float:
        self.check_fits(batch)
        return self.model.loss(batch)[0]

    @override
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        generator = np.random.default_rng(sampling.seed)
        new: list[int] = []
        last = prompt[-1]
        while len(new) < sampling.max_new_tokens:
            last = _choose(self.model.logits[last], sampling, generator)
            if last == end_of_text:
                break
            new.append(last)
        return new

    @override
    def capture(self, *, copy: bool = True) -> Sequence[StatePart]:
        file = BytesIO()
        np.save(file, np.stack([self.model.logits, self.velocity]), allow_pickle=False)
        return (InMemoryPart(_FILE, file.getvalue()),)

    @override
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        try:
            logits, velocity = np.load(BytesIO(read_whole(folder / _FILE, open_file)), allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            msg = f"{folder} holds no bigram model: {error}"
            raise StateError(msg) from error
        if logits.shape != self.model.logits.shape:
            msg = f"the checkpoint's model is {logits.shape} and this one {self.model.logits.shape}"
            raise StateError(msg)
        self.model.logits = logits
        if not weights_only:
            self.velocity = velocity

    def check_fits(self, part: Batch) -> None:
        if self.max_rows is not None and part.num_rows > self.max_rows:
            msg = f"{part.num_rows} rows do not fit"
            raise OutOfMemory(msg)


@final
class _MemoryUpdate(BasicUpdate):
    def __init__(self, trainable: _MemoryTrainable, learning_rate: float) -> None:
        self._trainable = trainable
        self._learning_rate = learning_rate
        self._gradient = np.zeros_like(trainable.model.logits)

    @override
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> float:
        self._trainable.check_fits(part)
        loss, gradient = self._trainable.model.loss(part)
        with np.errstate(invalid="ignore"):  # ``apply`` raises the error
            self._gradient += weight * gradient
        return loss

    @override
    def apply(self) -> float:
        norm = float(np.linalg.norm(self._gradient))
        if not math.isfinite(norm):
            msg = f"the gradient's norm is {norm}"
            raise NonFiniteGradients(msg)
        trainable = self._trainable
        trainable.velocity = _MOMENTUM * trainable.velocity + self._gradient
        trainable.model.logits = trainable.model.logits - self._learning_rate * trainable.velocity
        return norm

    @override
    def __enter__(self) -> Self:
        self._gradient[:] = 0.0
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gradient[:] = 0.0


def _choose(logits: NDArray[np.float64], sampling: Sampling, generator: np.random.Generator) -> int:
    order = np.argsort(-logits, kind="stable")[: sampling.top_k or None]
    if sampling.temperature == 0:
        return int(order[0])
    chances = np.exp((logits[order] - logits[order[0]]) / sampling.temperature)
    chances /= chances.sum()
    chances[np.cumsum(chances) - chances >= sampling.top_p] = 0.0
    return int(generator.choice(order, p=chances / chances.sum()))
