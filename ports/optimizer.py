"""The port for training a model: device, precision, wrapping, backward pass and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, SupportsFloat

from holdfast.ports.model_factory import Model
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


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device and the precision of training, for logs and for model FLOPs utilization (MFU).

    ``flops_per_token`` counts the forward and the backward pass; ``peak_flops`` is the peak rate of all ranks' devices
    together in FLOP/s. Either is None if it is not known: MFU is not shown then.
    """

    device: str
    precision: str
    num_parameters: int
    flops_per_token: float | None
    peak_flops: float | None = None


class Update(ABC):
    """One optimizer step as a unit of work, entered with ``with``.

    - ``accumulate`` adds the gradient of ``weight`` times the part's summed loss. It returns the summed loss without
      the weight, not yet read from the device. If the parts together make up the batch, and each has the weight
      1 / (number of targets in the batch), the gradient equals that of the whole batch within rounding. ``last`` marks
      the last part.
    - The model changes only in ``apply``, which clips the gradient, takes the step and returns the norm before
      clipping. It is called once.
    - Leaving without ``apply`` drops the gradients and changes nothing else.
    - If gradients are not finite, ``apply`` raises ``NonFiniteGradients`` and changes nothing.
    - A lack of memory raises ``OutOfMemory``, never the library's own error, and the error keeps no tensors alive. If
      the step was left incomplete, ``StepTorn`` is raised instead, and the state must be restored.
    """

    @abstractmethod
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        """Add the gradient of ``part``; return its summed loss in nats. Raises ``OutOfMemory``."""

    @abstractmethod
    def apply(self) -> SupportsFloat:
        """Take the step; return the gradient's norm before clipping.

        Raises ``NonFiniteGradients``, ``OutOfMemory`` and ``StepTorn`` as the class describes.
        """

    @abstractmethod
    def figures(self) -> Mapping[str, SupportsFloat]:
        """Return further figures of the parts so far, of all ranks, by the names of their metrics; collective.

        They are not yet read from the device. It is called before the update is left.
        """

    @abstractmethod
    def __enter__(self) -> Self:
        """Begin without gradients."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop gradients that were not applied."""


class HasOwnEnds(ABC):
    """The optional ability of a ``Trainable`` to know where its model stops, whatever its tokenizer."""

    @property
    @abstractmethod
    def own_ends(self) -> Sequence[int]:
        """Return the ids at which the model stops by its own settings; none if it has none."""


class Trainable(ABC):
    """A model wrapped for its device, with its optimizer.

    - ``update`` begins the step numbered ``step`` (the first is 1). All randomness of a step (dropout) is a function of
      the seed and ``step``, so a step that is repeated or resumed draws the same numbers, and no random state is saved.
    - ``evaluate`` returns the summed loss of a batch's targets in nats, without dropout. It changes nothing, and raises
      ``OutOfMemory`` as ``Update`` does. So does ``evaluate_pieces``, whose first value is exactly that of
      ``evaluate``, and whose second has the summed loss of each piece of a document, equal to it within rounding.
    - ``capture`` returns model, optimizer and description by value: later steps do not change a copy. It raises
      ``StateError`` after a failed ``apply`` that may have left a step incomplete.
    - ``restore`` continues bit for bit from a captured folder; ``weights_only`` reads the model only. A folder that
      does not fit raises ``StateError`` with the difference. Large files are opened by ``open_file``, and reading them
      from beginning to end is fastest; the other files are read directly. The content may be damaged and is treated as
      data, never as code.
    - If several processes train one model, ``update`` (with its parts, ``apply`` and ``figures``), ``capture``,
      ``restore``, ``generate`` and ``sum_over_ranks`` are collective: every rank calls them in the same order, with its
      own parts; the number of parts is the same on all ranks. Gradients are summed over ranks, so the weight of a part
      is 1 / (number of targets of all ranks). If ``is_sharded``, ``capture`` returns each rank's own shards without
      communicating, and on rank 0 also the parts that consolidate them; otherwise rank 0 returns the whole state.
      ``restore`` accepts the files of any number of ranks.
    """

    @property
    @abstractmethod
    def hardware(self) -> Hardware:
        """Return the device, the precision and the size of the model."""

    @property
    @abstractmethod
    def is_retry_safe(self) -> bool:
        """Return whether an update that is left without ``apply`` changes nothing, so that it can be repeated."""

    @property
    @abstractmethod
    def memory_retries(self) -> int:
        """Return how often the allocator has had to release cached memory; a rising number means nearly full memory."""

    @property
    @abstractmethod
    def is_sharded(self) -> bool:
        """Return whether each rank holds and captures only its own shard of the state."""

    @property
    @abstractmethod
    def num_positions(self) -> int | None:
        """Return the maximum number of tokens that the model can read; None if there is no limit."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the peak memory in bytes: of the device if it has its own memory, otherwise of the process (RSS)."""

    @abstractmethod
    def update(self, *, step: int, learning_rate: float) -> Update:
        """Begin an optimizer step."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> SupportsFloat:
        """Return the summed loss of ``batch`` in nats. Raises ``OutOfMemory``."""

    @abstractmethod
    def evaluate_pieces(self, batch: Batch) -> tuple[SupportsFloat, NDArray[np.float64]]:
        """Return what ``evaluate`` returns, and the summed loss of each piece, float64 (pieces,), in nats.

        Raises ``OutOfMemory``.
        """

    @abstractmethod
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        """Return the sum of each loss over all ranks, not yet read from the device; collective."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        """Return new token ids after ``prompt`` (at least one id), up to but without ``end_of_text``."""

    @abstractmethod
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        """Call ``tell`` with each id that ``generate`` would return, as soon as it is known if possible.

        An error that ``tell`` raises ends the generation and is raised; it changes nothing.
        """

    @abstractmethod
    def capture(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        """Return the state by value. Raises ``StateError`` if a failed ``apply`` may have left a step incomplete.

        Without ``copy``, tensors in host memory may be returned as views, for a save that ends before the next update;
        that needs almost no memory or time.
        """

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        """Continue from the files of ``capture`` in ``folder``.

        Raises ``StateError`` if they do not fit or are damaged.
        """


class Optimizer(ABC, Generic[Model]):
    """Wraps a bare model for training; from then on the model belongs to the ``Trainable`` that is returned."""

    @abstractmethod
    def prepare(self, model: Model) -> Trainable:
        """Return ``model`` on its device with its optimizer."""
