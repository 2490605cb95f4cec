"""Streams and first batches against those of an earlier commit: ``python -m benchmarks.data --against COMMIT``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.data.child import measure_apart
from benchmarks.quickstart import ROOT, checkout
from benchmarks.report import Figure, interval_of_median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.data.corpus import Corpus


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table: the task that both commits do in turn, and the seconds in what it returns."""

    name: str
    task: str
    arguments: Mapping[str, object]
    seconds: Callable[[Mapping[str, Any]], float]


def measure_against(corpus: Corpus, commit: str, pairs: int) -> Sequence[Figure]:
    """Return each time as a multiple of that at ``commit``; which of the two begins alternates from pair to pair."""
    with checkout(commit) as tree:
        caches = {ROOT: str(corpus.folder / "cache-now"), tree: str(corpus.folder / "cache-earlier")}
        text = {"tokenizer": corpus.tokenizer, "backend": "gigatoken"}
        for root, cache in caches.items():
            measure_apart("work.prepare", None, root, folder=corpus.many, cache=cache, **text)
        figures = [_compared(row, (ROOT, tree), {}, pairs) for row in _rows(corpus)]
        on_disk = _Row("first batch of this corpus's cache on disk", "work.resume_cache", {}, _seconds)
        return [*figures, _compared(on_disk, (ROOT, tree), caches, pairs)]


def _rows(corpus: Corpus) -> Sequence[_Row]:
    cold, warm = {"tokenizer": corpus.tokenizer, "backend": "gigatoken"}, {"tokenizer": corpus.tokenizer}
    grown = {**warm, "folder": corpus.grown(4), "warm": corpus.one, "mode": "stream", "cache": ""}
    copies = {"folder": corpus.many, **cold}
    return [
        _Row("raw to batches, cold", "work.stream", {"folder": corpus.one, **cold}, _a_token),
        _Row("raw to batches, copies", "work.stream", copies, _a_token),
        _Row("raw to batches, copies, none ahead", "work.stream", {**copies, "ahead": 0}, _a_token),
        _Row("stream of the corpus at 4x", "work.grow", grown, _a_token),
        _Row(
            "first batch in stream mode, median of places",
            "work.resume_stream",
            {"folder": corpus.many, **warm},
            lambda found: median(found["seconds"]),
        ),
        _Row(
            "first batch of 10^9 samples, median of places",
            "resume.resume_billion",
            {},
            lambda found: median(found["batch"]),
        ),
    ]


def _seconds(found: Mapping[str, Any]) -> float:
    return float(found["seconds"])


def _a_token(found: Mapping[str, Any]) -> float:
    return float(found["seconds"] / found["tokens"])


def _compared(row: _Row, trees: Sequence[Path], caches: Mapping[Path, str], pairs: int) -> Figure:
    print(f"measuring {row.name}", file=sys.stderr)
    ratios = []
    for number in range(pairs):
        took = {}
        for root in trees if number % 2 else reversed(trees):
            own = {"cache": caches[root]} if caches else {}
            took[root] = row.seconds(measure_apart(row.task, None, root, **row.arguments, **own))
        ratios.append(took[trees[0]] / took[trees[1]])
    middle, low, high = interval_of_median(ratios)
    name = f"{row.name}: time now / earlier, median of {pairs} pairs [95 % interval]"
    return Figure(name, f"{middle:.3f} [{low:.3f}, {high:.3f}]", "<= 1 (the interval reaches it)", low <= 1.0)
