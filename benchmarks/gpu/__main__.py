"""How fast one GPU trains, and in how much memory: Holdfast against a bare PyTorch loop and Hugging Face Trainer."""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import torch

from benchmarks.gpu.sizes import SIZES, TINY
from benchmarks.report import Figure, main
from benchmarks.train.material import prepare
from benchmarks.train.speed import RUN, furthest
from benchmarks.train.turns import Way
from benchmarks.turns import WayEndedError
from holdfast.adapters.shared.device.peak_flops import peak_flops

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from benchmarks.gpu.sizes import Size
    from benchmarks.train.material import Material
    from benchmarks.train.turns import Turn

NAMES = ("holdfast", "bare", "trainer", "fp8")
NOT_MEASURED = "not measured"

_LONG = 100_000  # steps of the run whose first ones are timed: long enough for what Holdfast does in long runs
_SAME = 2e-2
_TURNS = 3  # the first warms up
_A_TURN = 4.0  # seconds at a rate of 0.4 of the peak


@final
@dataclass(frozen=True, slots=True)
class _Goals:
    mfu: float
    bare: float
    trainer: float | None = None
    fp8: float | None = None


_GOALS = {"1B": _Goals(0.5, 0.99, 1.3, 1.15), "124M": _Goals(0.45, 0.99), "3B": _Goals(0.45, 0.99, None, 1.15)}

DESCRIPTION = (
    "Programs train Llamas from scratch, with the same initial weights, in bf16, on one GPU. Rows have 2048 tokens, "
    "and one document fills a row. A step has 64 rows, 32 with 3B, in micro-batches that fit the memory of the GPU, "
    "the same for all programs. The programs run one after another, each in its own process. `holdfast` is Holdfast "
    "as `holdfast train` runs a long run with `run.deterministic=false` and no evaluation, so it "
    "compiles the layers. `bare` is a hand-written PyTorch loop with the same options (attention, autocast, fused "
    "AdamW, the chunked loss, compiled layers). `trainer` is Hugging Face Trainer with bf16, torch.compile, the "
    "kernels of liger-kernel, a loading process, Holdfast's values for AdamW, no saving, and rows in order. `fp8` is "
    "Holdfast with `optimizer.precision=fp8`. Rates are medians of 2 turns of about 4 seconds, after one turn of "
    "warm-up. MFU counts six FLOPs per weight and the FLOPs of attention (PaLM, appendix B), relative to the dense "
    "bf16 peak in the data sheet. Memory is the highest allocation of torch. The losses of each step of the first "
    "turn must agree before times are compared; in later turns rounding makes the losses drift apart."
)


@final
@dataclass(frozen=True, slots=True)
class _Course:
    """Where and how long each way trains; ``peak`` is in FLOP/s. A trial ends with the error of a way that fails."""

    device: str
    peak: float | None
    memory: int
    seconds: float
    is_trial: bool = False

    def a_turn(self, size: Size) -> int:
        """Return the steps of a turn."""
        a_step = size.flops_per_token() * size.rows * size.length / (0.4 * (self.peak or math.inf))
        return max(2, round(_A_TURN / a_step)) if a_step else 1


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures; without a GPU the rows of the table without them."""
    if options.smoke:
        course = _Course("cpu", peak=None, memory=140 << 30, seconds=options.seconds, is_trial=True)
        return _measure_all((TINY,), options.ways, course)
    sizes = [size for size in SIZES if size.name in options.sizes]
    if not torch.cuda.is_available():
        print("This machine has no CUDA GPU, so nothing is measured: run this where there is one.", file=sys.stderr)
        return [figure for size in sizes for figure in _rows(size, {}, None)]
    name = torch.cuda.get_device_name()
    memory = torch.cuda.get_device_properties(0).total_memory
    figures = _measure_all(sizes, options.ways, _Course("cuda", peak_flops("cuda"), memory, options.seconds))
    return [Figure("GPU", f"{name}, {memory / 2**30:.0f} GiB"), *figures]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let some models and programs be measured, and bound how long it takes."""
    parser.add_argument("--seconds", type=float, default=3600, help="begin no way after so many (default: 3600)")
    sizes = [size.name for size in SIZES]
    parser.add_argument("--sizes", nargs="+", default=sizes, choices=sizes, help="models to train (default: all)")
    parser.add_argument("--ways", nargs="+", default=NAMES, choices=NAMES, help="programs to run (default: all)")


def _measure_all(sizes: Sequence[Size], names: Sequence[str], course: _Course) -> Sequence[Figure]:
    began = time.monotonic()
    found: dict[str, dict[str, list[Turn] | str]] = {size.name: {} for size in sizes}
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        rows = max(size.rows * _TURNS * course.a_turn(size) for size in sizes)
        length = sizes[0].length
        material = prepare(Path(folder), vocabulary=min(sizes[0].vocabulary, 8192), length=length, rows=rows)
        for size, name in sorted(_pairs(sizes, names), key=lambda pair: NAMES.index(pair[1]) >= 2):
            if time.monotonic() - began < course.seconds:
                print(f"measuring {size.name} by {name}", file=sys.stderr)
                found[size.name][name] = _train(name, size, material, course)
                print(_seen(found[size.name][name]), file=sys.stderr)
    figures: list[Figure] = []
    for size in sizes:
        figures.append(Figure(f"{size.name}: rows in a micro-batch", str(size.micro_batch_within(course.memory))))
        figures += _rows(size, found[size.name], course.peak)
    return figures


def _pairs(sizes: Sequence[Size], names: Sequence[str]) -> Sequence[tuple[Size, str]]:
    """Return what to measure; 8 bits gain nothing in smaller models."""
    return [(size, name) for size in sizes for name in names if name != "fp8" or size.width >= 2048]


def _train(name: str, size: Size, material: Material, course: _Course) -> list[Turn] | str:
    overrides = [
        *material.full_rows,
        *RUN,
        *(f"model.config.{field}={str(value).lower()}" for field, value in size.fields.items()),
        f"optimizer.batch_size={size.rows}",
        f"optimizer.micro_batch={size.micro_batch_within(course.memory)}",
        f"optimizer.device={course.device}",
        f"optimizer.precision={'fp8' if name == 'fp8' else 'bf16'}",
        "run.deterministic=false",
        f"run.dir={material.folder / size.name / name}",
        f"run.budget.steps={_LONG}",
    ]
    a_turn, has_gpu = course.a_turn(size), course.device == "cuda"
    program = "holdfast" if name == "fp8" else name
    try:
        with Way(program, overrides, steps=_TURNS * a_turn, a_turn=a_turn, has_gpu=has_gpu, tuned=has_gpu) as way:
            return [way.turn() for _ in range(_TURNS)]
    except WayEndedError as error:
        if course.is_trial:
            raise SystemExit(str(error)) from error
        if "out of memory" in str(error).lower():
            return "does not fit"
        print(error, file=sys.stderr)
        return "failed"


def _seen(found: list[Turn] | str) -> str:
    if isinstance(found, str):
        return found
    rates = (f"{turn.tokens / turn.seconds:,.0f}" for turn in found)
    return f"{' / '.join(rates)} tokens/s in its turns"


def _rows(size: Size, found: Mapping[str, list[Turn] | str], peak: float | None) -> Sequence[Figure]:
    turns = {name: each for name, each in found.items() if isinstance(each, list)}
    others = [name for name in NAMES[1:] if {"holdfast", name} <= turns.keys()]
    far = {name: furthest(turns["holdfast"][:1], turns[name][:1]) for name in others}
    rates = {name: statistics.median(turn.tokens / turn.seconds for turn in each[1:]) for name, each in turns.items()}
    used = {} if peak is None else {name: size.flops_per_token() * rate / peak for name, rate in rates.items()}
    peaks = {name: max(turn.memory_bytes for turn in each) / 2**30 for name, each in turns.items()}
    last = {name: each[-1].losses[-1] for name, each in turns.items()}
    tokens = size.rows * size.length * sum(len(turn.losses) for turn in next(iter(turns.values()), ()))

    def shown(values: Mapping[str, float], form: str) -> str:
        why = {name: text for name, text in found.items() if isinstance(text, str)}
        told = [form.format(values[name]) if name in values else why.get(name, NOT_MEASURED) for name in NAMES]
        return " / ".join(told) if values or why else NOT_MEASURED

    def times(name: str, other: str) -> float | None:
        is_same = max(far.get(name, 0.0), far.get(other, 0.0)) <= _SAME
        return rates[name] / rates[other] if {name, other} <= rates.keys() and is_same else None

    def ratio(text: str, value: float | None, goal: float | None) -> Figure:
        met = None if value is None or goal is None else round(value, 3) >= goal
        shown_value = NOT_MEASURED if value is None else f"{value:.3f}x"
        return Figure(f"{size.name}: {text}", shown_value, "" if goal is None else f">= {goal}x", met)

    goals, mfu, ways = _GOALS.get(size.name), used.get("holdfast"), " / ".join(NAMES)
    return [
        Figure(f"{size.name}: tokens/s, {ways}", shown(rates, "{:,.0f}")),
        ratio("holdfast / bare loop", times("holdfast", "bare"), goals and goals.bare),
        ratio("holdfast / Trainer", times("holdfast", "trainer"), goals and goals.trainer),
        ratio("fp8 / bf16, Holdfast", times("fp8", "holdfast"), goals and goals.fp8),
        Figure(
            f"{size.name}: MFU, {ways}",
            shown(used, "{:.1%}"),
            "" if goals is None else f">= {goals.mfu:.0%}",
            None if mfu is None or goals is None else mfu >= goals.mfu,
        ),
        Figure(f"{size.name}: peak memory, {ways}", shown(peaks, "{:.1f} GiB")),
        Figure(f"{size.name}: loss after {tokens:,} tokens, {ways}", shown(last, "{:.3f}")),
        Figure(
            f"{size.name}: largest relative difference of a loss in the first turn (else times are not compared)",
            ", ".join(f"{name} {distance:.0e}" for name, distance in far.items()) or NOT_MEASURED,
            f"<= {_SAME:.0e}",
            all(distance <= _SAME for distance in far.values()) if far else None,
            is_equality=True,
        ),
    ]


if __name__ == "__main__":
    main("gpu", DESCRIPTION, measure, ("torch", "transformers", "accelerate"), add_options=add_options)
