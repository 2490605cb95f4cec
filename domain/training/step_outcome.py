"""The figures of a step or an evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, SupportsFloat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class DataSupply:
    """The wait for a batch in seconds, the further batches that were ready then, and the data read by then.

    Bytes and repeated reads are those of this process; ``rejected`` are the records skipped since the run began.
    """

    wait_seconds: float = 0.0
    batches_ready: int = 0
    bytes_read: int = 0
    read_retries: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The figures of one optimizer step; no value is read from the device until ``loss`` is.

    ``losses`` are the micro-batches' summed losses in nats, each a number or a 0-dim tensor, and ``num_targets`` the
    number of their terms: tokens, or pairs of preferences. ``step_seconds`` is the time inside the engine, ``supply``
    the figures of the batch's way to it.
    """

    losses: Sequence[SupportsFloat]
    num_targets: int
    num_tokens: int
    grad_norm: SupportsFloat
    learning_rate: float
    micro_batch: int
    step_seconds: float
    supply: DataSupply = DataSupply()

    @property
    def loss(self) -> float:
        """Return the mean loss in nats per target token; NaN without targets."""
        return math.fsum(float(loss) for loss in self.losses) / self.num_targets if self.num_targets else math.nan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The loss on the held-out documents: ``nats`` over ``num_targets`` tokens of ``num_bytes`` bytes of text.

    Of preferences, it is over pairs, and the number of bytes is 0. ``parts`` are the figures of each source of a
    mixture and of each named set, by name; ``without_targets`` are the sets that have none, and so no figure.
    ``figures`` are further ones, by name.
    """

    nats: float
    num_targets: int
    num_bytes: int
    parts: Mapping[str, Evaluation] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    without_targets: tuple[str, ...] = ()

    @property
    def loss(self) -> float:
        """Return the mean loss in nats per target token, or per pair of preferences."""
        return self.nats / self.num_targets

    @property
    def bits_per_byte(self) -> float:
        """Return bits per byte of UTF-8 text: comparable between tokenizers, unlike ``loss``; NaN for preferences."""
        return self.nats / math.log(2) / self.num_bytes if self.num_bytes else math.nan

    def words(self, digits: int) -> Sequence[str]:
        """Return the figures for a person, each with its unit, the losses with ``digits`` after the point."""
        if not self.figures:
            bits = [f"{self.bits_per_byte:.{digits}f} bits per byte"] if self.num_bytes else []
            return [*bits, f"{self.loss:.{digits}f} nats/token"]
        rewards = {name.removeprefix("reward_"): value for name, value in self.figures.items()}
        accuracy = f"{rewards['accuracy']:.1%} of the pairs in the right order"
        return [f"{self.loss:.{digits}f} nats/pair", accuracy, f"reward margin {rewards['margin']:.{digits}f}"]

    def lacks(self, metric: str) -> bool:
        """Return whether ``metric`` is one of a set without targets."""
        return metric.partition("/")[2] in self.without_targets

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the figures under the names of their metrics, those of parts as ``eval_loss/NAME``."""
        found = {"eval_loss": self.loss} | {f"eval_{name}": value for name, value in self.figures.items()}
        if self.num_bytes:
            found["eval_bits_per_byte"] = self.bits_per_byte
        for part, figures in self.parts.items():
            found |= {f"{name}/{part}": value for name, value in figures.metrics.items()}
        return found
