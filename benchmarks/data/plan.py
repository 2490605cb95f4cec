"""What is measured how often, and how ways that take turns compare."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data.child import measure_apart
from benchmarks.report import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.data.corpus import Corpus

    Task = Callable[[], Mapping[str, Any]]
    Rates = list[float]  # of the rounds


@dataclass(frozen=True, slots=True)
class Plan:
    """Which corpus is measured how many times, and the factors by which it grows."""

    corpus: Corpus
    rounds: int = 3
    factors: tuple[int, ...] = (1, 4, 16)

    def scratch(self, name: str) -> str:
        """Return a new path for what a task leaves."""
        folder = self.corpus.folder / "scratch"
        folder.mkdir(exist_ok=True)
        return str(Path(tempfile.mkdtemp(dir=folder)) / name)

    def alternate(self, tasks: Mapping[str, Task]) -> dict[str, Rates]:
        """Run each of ``tasks`` once a round; return tokens a second in each round for each, in millions."""
        found: dict[str, list[float]] = {name: [] for name in tasks}
        for _ in range(self.rounds):
            for name, task in tasks.items():
                result = task()
                found[name].append(result["tokens"] / result["seconds"] / 1e6)
        return found

    def prepare(self, cache: str) -> Mapping[str, Any]:
        """Measure how the text of the copies becomes a cache."""
        how = {"folder": self.corpus.many, "tokenizer": self.corpus.tokenizer, "backend": "gigatoken"}
        return measure_apart("work.prepare", cache=cache, **how)

    def prepared(self) -> str:
        """Return a cache with the tokens of the copies."""
        cache = self.corpus.folder / "prepared"
        if not cache.exists():
            self.prepare(str(cache))
        return str(cache)


def best_of(rates: Mapping[str, Rates], *names: str) -> Rates:
    """Return the rates of that one of ``names`` whose median is the highest."""
    return max((rates[name] for name in names), key=statistics.median)


def times_of(rates: Rates, others: Rates) -> float:
    """Return how many times ``others`` the ``rates`` are: the median over rounds, so a slow minute counts for both."""
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def share_of(name: str, rates: Rates, others: Rates, goal: float) -> Figure:
    """Return how much of the ``others`` the ``rates`` are, in millions of tokens a second."""
    share = times_of(rates, others)
    value = f"{share:.0%} ({statistics.median(rates):.2f} of {statistics.median(others):.2f} Mtok/s)"
    return Figure(name, value, f">= {goal:.0%}", share >= goal)
