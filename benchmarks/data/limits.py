"""Figures of where a run may stand: far on, with much text, far from it."""

from __future__ import annotations

import shutil
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data.child import measure_apart
from benchmarks.data.plan import best_of, share_of, times_of
from benchmarks.data.resume import resume_billion
from benchmarks.data.s3 import far_storage
from benchmarks.data.speed import AHEAD
from benchmarks.report import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.data.plan import Plan, Task

_LATENCY = 0.050


def measure_resume(plan: Plan) -> Sequence[Figure]:
    """Measure how soon the first batch is there, wherever a run stands."""
    corpus = plan.corpus
    rounds = [resume_billion() for _ in range(plan.rounds)]
    batch, order = (_worst_median([found[name] for found in rounds]) for name in ("batch", "order"))
    cache = plan.prepared()
    disk = statistics.median(measure_apart("work.resume_cache", cache=cache)["seconds"] for _ in range(plan.rounds))
    streams = [
        measure_apart("work.resume_stream", folder=corpus.many, tokenizer=corpus.tokenizer)["seconds"]
        for _ in range(plan.rounds)
    ]
    stream = _worst_median(streams)
    return [
        Figure("first batch of 10^9 samples (synthetic index), worst place", f"{batch:.3f} s", "<= 1 s", batch <= 1.0),
        Figure("its order alone, worst place", f"{order * 1e3:.2f} ms", "<= 5 ms", order <= 0.005),
        Figure("first batch of this corpus's cache on disk, verified", f"{disk:.3f} s", "<= 1 s", disk <= 1.0),
        Figure("first batch in stream mode, local files, worst place", f"{stream:.2f} s", "<= 2 s", stream <= 2.0),
    ]


def measure_growth(plan: Plan) -> Sequence[Figure]:
    """Measure speed and memory as the corpus grows."""
    figures = []
    for mode in ("cache", "stream"):
        results = _grow(plan, mode)
        rates = [[run["tokens"] / run["seconds"] / 1e6 for run in runs] for runs in results.values()]
        shown = " / ".join(f"{factor}x" for factor in results)
        loss = 1 - min(times_of(each, rates[0]) for each in rates)
        row = f"{mode}: tokens/s at {shown}, median of {len(rates[0])} rounds"
        value = " / ".join(f"{statistics.median(each):.1f}" for each in rates) + f" Mtok/s ({loss:.0%} lost)"
        figures.append(Figure(row, value, "<= 10 % lost", loss <= 0.1))
        for name, judged in (("private", True), ("peak", mode == "stream")):
            peaks = [statistics.median(run[name] for run in runs) / 2**20 for runs in results.values()]
            growth = max(peaks) / peaks[0] - 1
            what = "no file backs" if name == "private" else "is resident, mapped files too"
            row = f"{mode}: most memory that {what}, at {shown}"
            value = " / ".join(f"{peak:.0f}" for peak in peaks) + f" MiB ({growth:+.0%})"
            figures.append(Figure(row, value, "<= 10 % more" if judged else "", growth <= 0.1 if judged else None))
    return figures


def measure_s3(plan: Plan) -> Sequence[Figure]:
    """Measure stream mode from storage that is far away against local files."""
    corpus, folder = plan.corpus, plan.corpus.grown(plan.factors[-1])
    with far_storage(folder, _LATENCY) as (url, environment):
        how = {"tokenizer": corpus.tokenizer, "backend": "gigatoken"}
        tasks: dict[str, Task] = {}
        for ahead in AHEAD:
            tasks[f"local {ahead}"] = partial(measure_apart, "work.stream", folder=folder, ahead=ahead, **how)
            tasks[f"s3 {ahead}"] = partial(measure_apart, "work.stream", environment, folder=url, ahead=ahead, **how)
        rates = plan.alternate(tasks)
        alone = measure_apart("work.stream", environment, folder=url, **how)
    local, far = (best_of(rates, *(f"{place} {ahead}" for ahead in AHEAD)) for place in ("local", "s3"))
    away = f"{_LATENCY * 1e3:.0f} ms away"
    return [
        share_of(f"{alone['tokens'] / 1e6:.0f} Mtok raw to batches from S3, {away} / local", far, local, 0.8),
        Figure(f"to load what speaks S3 and list the files, {away}", f"{alone['start_up']:.2f} s"),
        Figure(f"from there to the first batch, {away}", f"{alone['first']:.2f} s"),
    ]


def _grow(plan: Plan, mode: str) -> Mapping[int, Sequence[Mapping[str, float]]]:
    """Return the runs of each size of the corpus, a round each.

    The smallest, which takes a second, is run before and after each other and counts as one run of all its time: the
    speed of a shared machine is another one some seconds later. The order of the others changes with each round.
    """
    smallest, *larger = plan.factors
    runs: dict[int, list[Mapping[str, float]]] = {factor: [] for factor in plan.factors}
    for turn in range(2 * plan.rounds + 1):
        small = [_grow_once(plan, mode, smallest)]
        for factor in larger if turn % 2 else reversed(larger):
            runs[factor].append(_grow_once(plan, mode, factor))
            small.append(_grow_once(plan, mode, smallest))
        tokens, seconds = (sum(run[name] for run in small) for name in ("tokens", "seconds"))
        runs[smallest].append({**small[0], "tokens": tokens, "seconds": seconds})
    return runs


def _grow_once(plan: Plan, mode: str, factor: int) -> Mapping[str, float]:
    corpus, cache = plan.corpus, Path(plan.scratch("grown"))
    how = {"tokenizer": corpus.tokenizer, "warm": corpus.one, "mode": mode}
    found: dict[str, float] = measure_apart("work.grow", folder=corpus.grown(factor), cache=str(cache), **how)
    shutil.rmtree(cache, ignore_errors=True)
    return found


def _worst_median(rounds: Sequence[Sequence[float]]) -> float:
    return max(float(statistics.median(place)) for place in zip(*rounds, strict=True))
