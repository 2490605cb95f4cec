"""Figures of speed: raw text to batches, cached tokens to batches."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.data.child import measure_apart
from benchmarks.data.plan import best_of, share_of, times_of
from benchmarks.report import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.data.plan import Plan, Task

_LITDATA_PASSES = 6
AHEAD = (0, 4)  # batches read ahead: none, and as many as a run does by itself


def check_equal(plan: Plan) -> Sequence[Figure]:
    """End the benchmark if the tokens are not those of the peer."""
    corpus = plan.corpus
    wrong = measure_apart("equal.differences", folder=corpus.file, tokenizer=corpus.tokenizer)["differences"]
    if wrong:
        message = f"the tokens differ from those of datasets, so times do not compare: {', '.join(wrong)}"
        raise SystemExit(message)
    return [Figure("rows that differ from those of `datasets`, both modes, all backends (else nothing is timed)", "0")]


def measure_raw(plan: Plan) -> Sequence[Figure]:
    """Measure files to packed batches against ``datasets``, and each tokenizer against itself alone."""
    corpus = plan.corpus
    rates = plan.alternate(_raw_tasks(plan))
    peer, bare = (best_of(rates, *names) for names in (("datasets 0", "datasets 2"), ("bare 1", "bare 2")))
    rates |= {name: best_of(rates, *(f"{name} {ahead}" for ahead in AHEAD)) for name in ("cold", "gigatoken")}
    middle = {name: median(each) for name, each in rates.items()}
    figures = [
        Figure("`datasets` streaming, 0 / 2 workers", f"{middle['datasets 0']:.3f} / {middle['datasets 2']:.3f} Mtok/s")
    ]
    for name, shown, goal in (
        ("cold", "gigatoken", 100),
        ("tiktoken", "tiktoken", 20),
        ("huggingface", "Hugging Face", 5),
    ):
        times = times_of(rates[name], peer)
        row, value = f"raw to batches with {shown}, cold / `datasets`", f"{times:.1f}x ({middle[name]:.2f} Mtok/s)"
        figures.append(Figure(row, value, f">= {goal}x", times >= goal))
    parse = f"raw to batches with gigatoken, {corpus.copies} copies / read, parse and tokenize without packing"
    figures += [
        Figure(f"{row}, 0 / 4 batches ahead", _joined(middle, [f"{name} {ahead}" for ahead in AHEAD]))
        for row, name in (("gigatoken, cold", "cold"), (f"gigatoken, {corpus.copies} copies", "gigatoken"))
    ]
    return [
        *figures,
        share_of("raw to batches with tiktoken / tiktoken alone", rates["tiktoken"], rates["tiktoken alone"], 0.8),
        share_of("raw to batches with Hugging Face / alone", rates["huggingface"], rates["huggingface alone"], 0.8),
        share_of(parse, rates["gigatoken"], bare, 0.8),
        Figure(
            "raw to batches with gigatoken, cold", f"{middle['cold']:.1f} Mtok/s", ">= 40 Mtok/s", middle["cold"] >= 40
        ),
        Figure("the same, its words known from the comparison at a run's start", f"{middle['checked']:.1f} Mtok/s"),
        Figure("with gigatoken, copies, derived arrays made too", f"{middle['derived']:.1f} Mtok/s"),
        Figure("raw to the cache on disk with gigatoken, copies", f"{middle['prepare']:.1f} Mtok/s"),
    ]


def measure_cached(plan: Plan) -> Sequence[Figure]:
    """Measure cached tokens, fully shuffled, to batches against litData."""
    cache, chunks = plan.prepared(), plan.scratch("litdata")
    environment = {
        name: plan.scratch(name) for name in ("DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER")
    }
    wanted = measure_apart("peers.optimize_litdata", environment, cache=cache, target=chunks)["counts"]

    def litdata(workers: int) -> Mapping[str, Any]:
        found = measure_apart("peers.read_litdata", target=chunks, workers=workers, passes=_LITDATA_PASSES)
        if found["counts"] != wanted:
            message = f"litData with {workers} workers does not give each token once, so times do not compare"
            raise SystemExit(message)
        return found

    def ours(ahead: int, *, derived: bool) -> Mapping[str, Any]:
        how = {"cache": cache, "passes": _LITDATA_PASSES, "ahead": ahead, "derived": derived}
        return measure_apart("work.read_cached", **how)

    if measure_apart("work.count_cached", cache=cache)["counts"] != wanted:
        message = "a pass over the cache does not give each token once"
        raise SystemExit(message)
    tasks: dict[str, Task] = {
        **{f"litdata {workers}": partial(litdata, workers) for workers in (0, 1, 2)},
        **{f"ahead {ahead}": partial(ours, ahead, derived=False) for ahead in AHEAD},
        "derived": partial(ours, 0, derived=True),
    }
    rates = plan.alternate(tasks)
    peers, both = [f"litdata {workers}" for workers in (0, 1, 2)], [f"ahead {ahead}" for ahead in AHEAD]
    middle = {name: median(each) for name, each in rates.items()}
    times, best = times_of(best_of(rates, *both), best_of(rates, *peers)), max(middle[name] for name in both)
    return [
        Figure("litData, 0 / 1 / 2 workers", _joined(middle, peers)),
        Figure("cached, fully shuffled, 0 / 4 batches ahead", _joined(middle, both)),
        Figure("cached, fully shuffled, best / litData's best", f"{times:.2f}x", ">= 1.5x", times >= 1.5),
        Figure("cached, fully shuffled, best", f"{best:.1f} Mtok/s", ">= 150 Mtok/s", best >= 150),
        Figure("cached, none ahead, derived arrays made too", f"{middle['derived']:.1f} Mtok/s"),
    ]


def _joined(rates: Mapping[str, float], names: Sequence[str]) -> str:
    return " / ".join(f"{rates[name]:.1f}" for name in names) + " Mtok/s"


def _raw_tasks(plan: Plan) -> Mapping[str, Task]:
    corpus = plan.corpus

    def task(name: str, folder: str, **more: object) -> Task:
        return lambda: measure_apart(name, folder=folder, tokenizer=corpus.tokenizer, **more)

    def ours(folder: str, backend: str, **more: object) -> Task:
        return task("work.stream", folder, backend=backend, **more)

    return {
        "datasets 0": task("peers.stream_datasets", corpus.portion, workers=0),
        "datasets 2": task("peers.stream_datasets", corpus.portion, workers=2),
        "huggingface": ours(corpus.one, "huggingface"),
        "huggingface alone": task("peers.encode_huggingface", corpus.one),
        "tiktoken": ours(corpus.one, "tiktoken"),
        "tiktoken alone": task("peers.encode_tiktoken", corpus.one),
        **{f"cold {ahead}": ours(corpus.one, "gigatoken", ahead=ahead) for ahead in AHEAD},
        "checked": ours(corpus.one, "gigatoken", checked=True),
        **{f"gigatoken {ahead}": ours(corpus.many, "gigatoken", ahead=ahead) for ahead in AHEAD},
        "derived": ours(corpus.many, "gigatoken", derived=True),
        **{f"bare {threads}": task("peers.parse_and_encode", corpus.many, threads=threads) for threads in (1, 2)},
        "prepare": lambda: plan.prepare(plan.scratch("prepared")),
    }
