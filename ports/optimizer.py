"""The port for training a model: device, precision, wrapping, backward pass and step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, SupportsFloat

from holdfast.ports.model_factory import Model
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device and the precision of training, for people and for model FLOPs utilization (MFU).

    ``flops_per_token`` counts forward and backward pass; ``peak_flops`` (FLOP/s) is that of all ranks' devices
    together, None if unknown.
    """

    device: str
    precision: str
    num_parameters: int
    flops_per_token: float
    peak_flops: float | None = None


class Update(ABC):
    """One optimizer step as a unit of work, entered with ``with``.

    - ``accumulate`` adds the gradient of ``weight`` times the part's summed loss, and returns the summed loss,
      unweighted and not yet read from the device. Parts that together make up the batch, each with the weight one over
      the batch's number of targets, give the gradient of the whole batch within rounding. ``last`` marks the last part.
    - The model changes only in ``apply``, which clips the gradient, takes the step and returns the norm before
      clipping. It is called once.
    - Leaving without ``apply`` drops the gradients and leaves no trace.
    - If gradients are not finite, ``apply`` raises ``NonFiniteGradients`` and changes nothing.
    - Running out of memory raises ``OutOfMemory``, never the library's own error, and keeps no tensors alive. If it
      leaves the step incomplete, it raises ``StepTorn``, after which the state must be restored.
    """

    @abstractmethod
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        """Add the gradient of ``part``; return its summed loss in nats."""

    @abstractmethod
    def apply(self) -> SupportsFloat:
        """Take the step; return the gradient's norm."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Begin with no gradients."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop gradients that were not applied."""


class Trainable(ABC):
    """A model wrapped for its device, with its optimizer.

    - ``update`` begins the step numbered ``step`` (the first is 1). All randomness of a step (dropout) is a function of
      the seed and ``step``, so a step that is repeated or resumed draws the same numbers, and no random state is saved.
    - ``evaluate`` returns the summed loss of a batch's targets in nats, without dropout; it changes nothing.
    - ``capture`` returns model, optimizer and description by value: later steps do not change a copy. It raises
      ``StateError`` after a failed ``apply`` that may have left a step incomplete.
    - ``restore`` continues bit for bit from a captured folder; ``weights_only`` reads the model only. A folder that
      does not fit raises ``StateError`` with the difference. Large files are opened by ``open_file`` and best read from
      beginning to end; the others are read directly. The content may be damaged and is treated as data, never as code.
    - ``evaluate`` raises ``OutOfMemory`` as ``Update`` does.
    - If several processes train one model, ``update`` (with its parts and ``apply``), ``capture``, ``restore``,
      ``generate`` and ``sum_over_ranks`` are collective: every rank calls them in the same order, with its own parts,
      equally many. Gradients are summed over ranks, so the weight of a part is one over the targets of all ranks.
      If ``is_sharded``, ``capture`` returns each rank's own shards without communicating, and on rank 0 also the parts
      that consolidate them; otherwise rank 0 returns the whole state. ``restore`` accepts what any number of ranks
      wrote.
    """

    @property
    @abstractmethod
    def hardware(self) -> Hardware:
        """Return the device, the precision and the size of the model."""

    @property
    @abstractmethod
    def is_retry_safe(self) -> bool:
        """Return whether an update that is left without ``apply`` leaves no trace, so that it can be repeated."""

    @property
    @abstractmethod
    def memory_retries(self) -> int:
        """Return how often the allocator had to release cached memory so far: a sign that memory is nearly full."""

    @property
    @abstractmethod
    def is_sharded(self) -> bool:
        """Return whether each rank holds and captures only its own shard of the state."""

    @property
    @abstractmethod
    def num_positions(self) -> int | None:
        """Return the maximum number of tokens that the model can read, None if there is no limit."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the peak memory in bytes: of the device if it has its own memory, otherwise of the process (RSS)."""

    @abstractmethod
    def update(self, *, step: int, learning_rate: float) -> Update:
        """Begin an optimizer step."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> SupportsFloat:
        """Return the summed loss of ``batch`` in nats."""

    @abstractmethod
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        """Return the sum of each loss over all ranks, not yet read from the device; collective."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        """Return new token ids after ``prompt`` (at least one id), up to ``end_of_text``, which is left out."""

    @abstractmethod
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        """Call ``tell`` with each id that ``generate`` would return, as soon as it is known if possible."""

    @abstractmethod
    def capture(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        """Return the state by value.

        Without ``copy``, tensors in host memory may be returned as views, for a save that ends before the next update;
        this takes neither memory nor time.
        """

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        """Continue from the files of ``capture`` in ``folder``."""


class Optimizer(ABC, Generic[Model]):
    """Wraps a bare model for training; the model belongs to the result from then on."""

    @abstractmethod
    def prepare(self, model: Model) -> Trainable:
        """Return ``model`` on its device with its optimizer."""
