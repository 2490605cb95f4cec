"""How a model is trained: device, precision, wrapping, backward and step."""

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
    """Where and how a model trains: for people, and for the share of the device's peak that is used (MFU).

    ``flops_per_token`` counts forward and backward; ``peak_flops`` is that of all ranks' devices together,
    None where it is not known.
    """

    device: str
    precision: str
    num_parameters: int
    flops_per_token: float
    peak_flops: float | None = None


class Update(ABC):
    """One optimizer step as a unit of work, entered with ``with``.

    - ``accumulate`` adds the gradient of ``weight`` times the part's summed loss and returns that summed loss,
      unweighted and not yet read from the device. Parts whose targets add up to the batch, each with weight one over
      the batch's number of targets, give the gradient of the whole batch within rounding. ``last`` marks the last.
    - Nothing changes before ``apply``. ``apply`` clips, steps and returns the gradient's norm before clipping, once.
    - Leaving without ``apply`` drops the gradients and leaves no trace.
    - Non-finite gradients make ``apply`` raise ``NonFiniteGradients`` and change nothing.
    - A shortage of memory raises ``OutOfMemory``, never the library's own error, and holds no tensors alive; one that
      leaves the step half taken raises ``StepTorn``, after which the state must be restored.
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
        """Drop whatever was not applied."""


class Trainable(ABC):
    """A model wrapped for its device, with its optimizer.

    - ``update`` begins the step numbered ``step`` (the first is 1). All randomness of a step (dropout) is a function of
      the seed and ``step``, so a step that is repeated or resumed draws the same, and no random state is saved.
    - ``evaluate`` returns the summed loss of a batch's targets in nats, without dropout and without a trace.
    - ``capture`` returns model, optimizer and description by value: later steps do not touch a copy. It raises
      ``StateError`` while a failed ``apply`` may have left a step half taken.
    - ``restore`` continues bit for bit from a captured folder; ``weights_only`` reads the model alone. A folder that
      does not fit raises ``StateError`` and says what differs. Large files are opened by ``open_file`` and best read
      from begin to end; others are read as they lie. What is read may be damaged: it is data, and never more.
    - ``evaluate`` raises ``OutOfMemory`` as ``Update`` does.
    - Where several processes train one model, ``update`` (with its parts and ``apply``), ``capture``, ``restore``,
      ``generate`` and ``sum_over_ranks`` are collective: each rank calls them in the same order, with parts of its own,
      as many as the others. Gradients are summed over ranks, so a part weighs one over the targets of all ranks.
      Where ``is_sharded``, ``capture`` gives on each rank what that rank holds, without a word to the others, and on
      rank 0 also the parts that join them; else all of it on rank 0. ``restore`` takes what any number of ranks wrote.
    """

    @property
    @abstractmethod
    def hardware(self) -> Hardware:
        """Return where and how the model trains."""

    @property
    @abstractmethod
    def is_retry_safe(self) -> bool:
        """Return whether an update that is left without ``apply`` leaves no trace, so that it can be tried again."""

    @property
    @abstractmethod
    def memory_retries(self) -> int:
        """Return how often so far the allocator got room only by giving back what it had kept: a shortage is near."""

    @property
    @abstractmethod
    def is_sharded(self) -> bool:
        """Return whether each rank holds, and captures, a part of the state."""

    @property
    @abstractmethod
    def num_positions(self) -> int | None:
        """Return how many tokens of a text the model can see, None if it knows no such limit."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the peak of memory in use: the device's if it has its own, else the process's resident size."""

    @abstractmethod
    def update(self, *, step: int, learning_rate: float) -> Update:
        """Begin an optimizer step."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> SupportsFloat:
        """Return the summed loss of ``batch`` in nats."""

    @abstractmethod
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        """Return numbers that add up to the losses of all ranks, not yet read from the device; collective."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        """Return new token ids after ``prompt``, which has at least one, up to ``end_of_text`` (left out)."""

    @abstractmethod
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        """Hand the ids that ``generate`` would return to ``tell``, each as it comes if that can be."""

    @abstractmethod
    def capture(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        """Return the state by value.

        Without ``copy`` what lies in host memory may be given as it is, for a save that ends before the next update:
        it takes no memory then, and no time.
        """

    @abstractmethod
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        """Continue from what ``capture`` wrote into ``folder``."""


class Optimizer(ABC, Generic[Model]):
    """Wraps a bare model for training; the model belongs to the result from then on."""

    @abstractmethod
    def prepare(self, model: Model) -> Trainable:
        """Return ``model`` on its device with its optimizer."""
