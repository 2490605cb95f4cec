"""Figures of speed: ways that take turns on the same rows, and on documents."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING, final

from benchmarks.report import Figure, interval_of_median
from benchmarks.train.turns import Way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.train.material import Material
    from benchmarks.train.turns import Turn

WARM_UP = 3
_PROGRAMS = ("holdfast", "bare", "trainer")
_LONG = 20_000  # steps of the run whose first ones are timed: long enough for what Holdfast does in long runs
_SAME = 1e-6  # a step's loss of a bare loop and of Holdfast, relative, in fp32
_ROUNDED = 1e-2  # a loss of Trainer and of Holdfast, relative, in bf16

RUN = (
    "optimizer.algorithm=adamw",  # of all programs, whatever Holdfast takes by default on the data
    "state_store.every=0",
    "evaluation.every=0",
    "evaluation.at_start=false",
    "optimizer.schedule.kind=constant",
    "optimizer.schedule.warmup_steps=0",
    "optimizer.learning_rate=1e-3",
)


@final
class Contest:
    """Ways that train one model, described by ``overrides``, for ``pairs`` rounds after a warm-up.

    A trial (``is_trial``) trains in fp32 only.
    """

    def __init__(
        self, material: Material, model: Sequence[str], *, pairs: int, precision: str, is_trial: bool = False
    ) -> None:
        self.is_trial = is_trial
        self.material = material
        self.pairs = pairs
        self.precision = "fp32" if is_trial else precision
        self._overrides = (*model, *RUN, "optimizer.device=cpu")

    def rounds(self, names: Sequence[str], *, documents: bool = False, exact: bool = False) -> Mapping[str, list[Turn]]:
        """Return the turns of each way; with ``exact`` a few in fp32."""
        data = self.material.documents if documents else self.material.full_rows
        precision, steps = ("fp32", WARM_UP) if exact else (self.precision, WARM_UP + self.pairs)
        found: dict[str, list[Turn]] = {name: [] for name in names}
        with ExitStack() as stack:
            ways = [
                stack.enter_context(self._way(name, data, precision, steps=steps, documents=documents, exact=exact))
                for name in names
            ]
            for _ in range(steps):
                for way in ways:
                    found[way.name].append(way.turn())
        return found

    def _way(self, name: str, data: Sequence[str], precision: str, *, steps: int, documents: bool, exact: bool) -> Way:
        folder: Path = self.material.folder / f"{name}-{exact}-{documents}"
        overrides = [*self._overrides, *data, f"optimizer.precision={precision}"]
        overrides += [f"run.dir={folder}", f"run.budget.steps={steps if exact else _LONG}"]
        return Way(name, overrides, steps=steps, documents=documents)


def measure_speed(contest: Contest) -> Sequence[Figure]:
    """Measure Holdfast against both, on rows that one document fills; the losses are compared first."""
    turns = contest.rounds(_PROGRAMS) if contest.is_trial else {}
    exact = turns or contest.rounds(_PROGRAMS[:2], exact=True)
    distance = furthest(exact["holdfast"], exact["bare"])
    if distance > _SAME:
        message = f"the loops do not compute the same, so their times do not compare: losses differ by {distance:.1e}"
        raise SystemExit(message)
    turns = turns or contest.rounds(_PROGRAMS)
    first = furthest(turns["holdfast"][:1], turns["trainer"][:1])
    if first > _ROUNDED:
        message = f"Trainer does not compute the same, so its times do not compare: first losses differ by {first:.1e}"
        raise SystemExit(message)
    shown = f"{contest.precision}, median of {contest.pairs} rounds [95 % interval]"
    bare, trainer = (_ratio(turns["holdfast"], turns[name]) for name in ("bare", "trainer"))
    seconds = " / ".join(f"{turns[name][0].seconds:.2f}" for name in turns)
    rates = " / ".join(f"{_rate(turns[name]):,.0f}" for name in turns)
    names = " / ".join(turns)
    return [
        Figure(
            f"largest relative difference of a loss, bare loop, fp32, {WARM_UP} steps (else nothing is timed)",
            f"{distance:.0e}",
            f"<= {_SAME:.0e}",
            distance <= _SAME,
            is_equality=True,
        ),
        Figure(
            f"relative difference of the first loss, Trainer, {contest.precision} (else nothing is timed)",
            f"{first:.0e}",
            f"<= {_ROUNDED:.0e}",
            first <= _ROUNDED,
            is_equality=True,
        ),
        Figure(
            f"tokens/s, holdfast / bare loop, {shown}",
            _text(bare),
            ">= 0.98 (the interval reaches it)",
            bare[2] >= 0.98,
        ),
        Figure(f"tokens/s, holdfast / Trainer, {shown}", _text(trainer), ">= 1.3x", trainer[0] >= 1.3),
        Figure(f"tokens/s, {names}, {contest.precision}, median", rates),
        Figure(f"first step, whatever it warms up, {names}", f"{seconds} s"),
    ]


def measure_documents(contest: Contest) -> Sequence[Figure]:
    """Measure Holdfast, which packs, against Trainer, which pads, by tokens that are no padding."""
    turns = contest.rounds(("holdfast", "trainer"), documents=True)
    ratio = _ratio(turns["holdfast"], turns["trainer"])
    tokens = " / ".join(f"{statistics.mean(turn.tokens for turn in turns[name]):,.0f}" for name in turns)
    return [
        Figure(f"the same on documents, packed / padded, median of {contest.pairs} rounds", _text(ratio)),
        Figure("tokens a step that are no padding, packed / padded, mean", tokens),
    ]


def furthest(ours: Sequence[Turn], theirs: Sequence[Turn]) -> float:
    """Return the largest difference of a step's loss, as a share of theirs."""
    pairs = [pair for a, b in zip(ours, theirs, strict=True) for pair in zip(a.losses, b.losses, strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def _ratio(ours: Sequence[Turn], theirs: Sequence[Turn]) -> tuple[float, float, float]:
    pairs = list(zip(ours, theirs, strict=True))[WARM_UP:]
    return interval_of_median([(a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in pairs])


def _rate(turns: Sequence[Turn]) -> float:
    return statistics.median(turn.tokens / turn.seconds for turn in turns[WARM_UP:])


def _text(ratio: tuple[float, float, float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*ratio)
