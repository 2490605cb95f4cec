"""The figures of a step or an evaluation."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, SupportsFloat, final

from holdfast.domain.data.cursor import Cursor
from holdfast.domain.fault_tolerance.health import Health
from holdfast.domain.training.early_stopping import Patience

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.early_stopping import EarlyStopping


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
        metrics = {"eval_loss": self.loss} | {f"eval_{name}": value for name, value in self.figures.items()}
        if self.num_bytes:
            metrics["eval_bits_per_byte"] = self.bits_per_byte
        for part, figures in self.parts.items():
            metrics |= {f"{name}/{part}": value for name, value in figures.metrics.items()}
        return metrics


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of a run without an interruption: those after ``step``, up to ``last``.

    The first of them begins at the sample ``sample``, and each takes ``batch`` samples. ``excluded`` is the digest of
    the exclusion that was in force.
    """

    step: int
    last: int
    sample: int
    batch: int
    excluded: str


@final
@dataclass(frozen=True, slots=True)
class StepSamples:
    """The stretches of a run whose steps were not rolled back, in order; each begins where the last one ends."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]], last: int, batch: int, excluded: str) -> Self:
        """Return the samples of the steps of a run up to the step ``last``, from its ``events`` in order.

        ``batch`` and ``excluded`` are those of the newest start, for events of earlier versions, which record neither
        them nor samples.
        """
        begun: list[Stretch] = []
        start = Stretch(0, 0, 0, batch, excluded)
        for event in events:
            if event.get("event") not in ("RunStarted", "RolledBack"):
                continue
            if event["event"] == "RunStarted":
                start = replace(
                    start,
                    batch=int(event.get("batch_size", batch)),
                    excluded=str(event.get("excluded", excluded)),
                )
            step = int(event["step"])
            while begun and begun[-1].step >= step:
                begun.pop()
            before = begun[-1] if begun else start
            sample = before.sample + (step - before.step) * before.batch
            begun.append(replace(start, step=step, sample=int(event.get("samples", sample))))
        if not begun or begun[0].step:
            begun.insert(0, Stretch(0, 0, 0, batch, excluded))
        ends = [*(each.step for each in begun[1:]), last]
        slices = [replace(each, last=end) for each, end in zip(begun, ends, strict=True)]
        return cls(tuple(each for each in slices if each.last > each.step))

    @property
    def last(self) -> int:
        """Return the last step, 0 if there is none."""
        return self.stretches[-1].last if self.stretches else 0

    @property
    def end(self) -> int:
        """Return the number of the sample after those of the last step."""
        return self.of_step(self.last)[1] if self.stretches else 0

    def stretch_of(self, step: int) -> Stretch:
        """Return the stretch of ``step``, from 1 to ``last``."""
        return self.stretches[bisect_left([each.last for each in self.stretches], step)]

    def of_step(self, step: int) -> tuple[int, int]:
        """Return the first sample of ``step``, from 1 to ``last``, and the sample after its last one."""
        stretch = self.stretch_of(step)
        begin = stretch.sample + (step - stretch.step - 1) * stretch.batch
        return begin, min(begin + stretch.batch, self._end_of(stretch))

    def steps_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the step that each of ``samples`` was in, int64, 0 for samples that no step has kept."""
        import numpy as np  # the supervisor, which waits for weeks, reads progress and no samples

        steps = np.zeros(len(samples), np.int64)
        for stretch in self.stretches:
            end = min(self._end_of(stretch), stretch.sample + (stretch.last - stretch.step) * stretch.batch)
            here = (stretch.sample <= samples) & (samples < end)
            steps[here] = stretch.step + 1 + (samples[here] - stretch.sample) // stretch.batch
        return steps

    def disagreeing(self, saved: Sequence[tuple[int, int]]) -> int | None:
        """Return the first step of ``saved``, pairs of a step and the samples up to it, that says otherwise, if any."""
        for step, samples in saved:
            if 0 < step <= self.last:
                begin, end = self.of_step(step)
                if not begin < samples <= end:
                    return step
        return None

    def _end_of(self, stretch: Stretch) -> int:
        """Return the first sample that the next stretch takes, or a number beyond all samples."""
        later = [each.sample for each in self.stretches if each.step >= stretch.last]
        return later[0] if later else sys.maxsize


@dataclass(frozen=True, slots=True)
class Progress:
    """The complete optimizer steps of a run, their tokens, the position of the next batch, and the run's health.

    ``patience`` is the state of early stopping, None before the first evaluation and without early stopping.
    """

    step: int = 0
    tokens: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    health: Health = field(default_factory=Health)
    patience: Patience | None = None

    def after(self, batch: Batch, num_tokens: int | None = None, loss: float | None = None) -> Progress:
        """Return the progress after a step on ``batch``.

        ``num_tokens`` counts the tokens of the step on all ranks (None: those of ``batch``). ``loss`` is its mean
        loss, or None if the update was dropped.
        """
        tokens = self.tokens + (num_tokens or batch.num_tokens)
        return replace(self, step=self.step + 1, tokens=tokens, cursor=batch.cursor, health=self.health.after(loss))

    def after_idle(self, batch: Batch, num_tokens: int) -> Progress:
        """Return the progress after a step on ``batch`` without targets, of ``num_tokens`` tokens on all ranks."""
        return replace(self.after(batch, num_tokens), health=self.health.after_idle())

    def evaluated(self, metrics: Mapping[str, float], rule: EarlyStopping | None) -> Progress:
        """Return the progress after an evaluation that measured ``metrics``; without a ``rule`` no state is kept."""
        return replace(self, patience=None if rule is None else rule.after(self.patience, self.step, metrics))

    def rolled_back_to(self, restored: Progress) -> Progress:
        """Return the progress of this run after a roll-back to ``restored``, to continue with the next batches."""
        returns = (*self.health.returns, restored.step)
        health = replace(restored.health, dropped=self.health.dropped, returns=returns)
        return replace(restored, cursor=self.cursor, health=health)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "cursor": self.cursor.to_json(),
            "health": self.health.to_json(),
            **({} if self.patience is None else {"early_stopping": self.patience.to_json()}),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the progress that ``to_json`` described; earlier versions recorded no health.

        Raises ``ValueError`` if ``record`` is not valid.
        """
        health = Health.from_json(record["health"]) if "health" in record else Health()
        patience = Patience.from_json(record["early_stopping"]) if "early_stopping" in record else None
        return cls(int(record["step"]), int(record["tokens"]), Cursor.from_json(record["cursor"]), health, patience)
