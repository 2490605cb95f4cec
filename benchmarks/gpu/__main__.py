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

NAMES = ("holdfast", "bare", "trainer")
NOT_MEASURED = "not measured"

_LONG = 100_000  # steps of the run whose first ones are timed: long enough for what Holdfast does in long runs
_SAME, _MFU, _TIMES = 2e-2, 0.5, 1.2
_GOALS_OF = "1B"  # on one H200

DESCRIPTION = (
    "Three programs train Llamas from scratch, with the same initial weights, in bf16, on one GPU. Rows have 2048 "
    "tokens, and one document fills a row. The batch size depends on the memory of the GPU. The programs run one "
    "after another, each in its own process. The first program is Holdfast as `python -m application train` runs a "
    "long run with `run.deterministic=false` and no evaluation, so it compiles the layers. The second program is a "
    "hand-written PyTorch loop with the same options (attention, autocast, fused AdamW, the chunked loss, compiled "
    "layers). The third program is Hugging Face Trainer with its defaults, except for bf16, Holdfast's values for "
    "AdamW, no saving, and rows in order. Rates are medians of 3 turns of 10 steps, after one turn of warm-up. MFU "
    "counts six FLOPs per weight and the FLOPs of attention (PaLM, appendix B), relative to the dense peak in the "
    "data sheet. Memory is the highest allocation of torch. The losses of each step of the first turn must agree "
    "before times are compared; in later turns rounding makes the losses drift apart."
)


@final
@dataclass(frozen=True, slots=True)
class _Course:
    """Where and how long each way trains."""

    device: str
    turns: int
    a_turn: int
    memory: int
    seconds: float

    @property
    def steps(self) -> int:
        return self.turns * self.a_turn


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures; without a GPU the rows of the table without them."""
    if options.tiny:
        if options.write:
            message = "--write puts down figures of a GPU, so it does not take --tiny"
            raise SystemExit(message)
        return _measure_all((TINY,), _Course("cpu", turns=2, a_turn=1, memory=140 << 30, seconds=options.seconds))
    if not torch.cuda.is_available():
        print("This machine has no CUDA GPU, so nothing is measured: run this where there is one.", file=sys.stderr)
        return [figure for size in SIZES for figure in _rows(size, {}, None)]
    name = torch.cuda.get_device_name()
    memory = torch.cuda.get_device_properties(0).total_memory
    figures = _measure_all(SIZES, _Course("cuda", turns=4, a_turn=10, memory=memory, seconds=options.seconds))
    return [Figure("GPU", f"{name}, {memory / 2**30:.0f} GiB"), *figures]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let all be tried without a GPU, and bound how long it takes."""
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, few steps: does it work")
    parser.add_argument("--seconds", type=float, default=450, help="begin no further way after so many (default: 450)")


def _measure_all(sizes: Sequence[Size], course: _Course) -> Sequence[Figure]:
    figures: list[Figure] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        rows = max(size.rows_within(course.memory) for size in sizes) * course.steps
        length = sizes[0].length
        material = prepare(Path(folder), vocabulary=min(sizes[0].vocabulary, 8192), length=length, rows=rows)
        for size in sizes:
            found: dict[str, list[Turn] | str] = {}
            for name in NAMES:
                if time.monotonic() - began < course.seconds:
                    print(f"measuring {size.name} by {name}", file=sys.stderr)
                    found[name] = _train(name, size, material, course)
                    print(_seen(found[name]), file=sys.stderr)
            figures += _rows(size, found, peak_flops(course.device))
    return figures


def _train(name: str, size: Size, material: Material, course: _Course) -> list[Turn] | str:
    overrides = [
        *material.full_rows,
        *RUN,
        *(f"model.config.{field}={str(value).lower()}" for field, value in size.fields.items()),
        f"optimizer.batch_size={size.rows_within(course.memory)}",
        f"optimizer.device={course.device}",
        "optimizer.precision=bf16",
        "run.deterministic=false",
        f"run.dir={material.folder / size.name / name}",
        f"run.budget.steps={_LONG}",
    ]
    try:
        with Way(name, overrides, steps=course.steps, a_turn=course.a_turn, has_gpu=course.device == "cuda") as way:
            return [way.turn() for _ in range(course.turns)]
    except WayEndedError as error:
        if "memory" in str(error).lower():
            return "does not fit"
        raise SystemExit(str(error)) from error


def _seen(found: list[Turn] | str) -> str:
    if isinstance(found, str):
        return found
    rates = (f"{turn.tokens / turn.seconds:,.0f}" for turn in found)
    return f"{' / '.join(rates)} tokens/s in its turns"


def _rows(size: Size, found: Mapping[str, list[Turn] | str], peak: float | None) -> Sequence[Figure]:
    turns = {name: each for name, each in found.items() if isinstance(each, list)}
    far = {
        name: furthest(turns["holdfast"][:1], turns[name][:1])
        for name in NAMES[1:]
        if {"holdfast", name} <= turns.keys()
    }
    has_goal = size.name == _GOALS_OF and (not torch.cuda.is_available() or "H200" in torch.cuda.get_device_name())
    rates = {name: statistics.median(turn.tokens / turn.seconds for turn in each[1:]) for name, each in turns.items()}
    used = {} if peak is None else {name: size.flops_per_token() * rate / peak for name, rate in rates.items()}

    def shown(values: Mapping[str, float], form: str) -> str:
        missing = {name: found[name] for name in NAMES if isinstance(found.get(name), str)}
        if not values and not missing:
            return NOT_MEASURED
        return " / ".join(
            form.format(values[name]) if name in values else str(missing.get(name, NOT_MEASURED)) for name in NAMES
        )

    def times(other: str) -> float | None:
        return rates["holdfast"] / rates[other] if far.get(other, math.inf) <= _SAME else None

    peaks = {name: max(turn.memory_bytes for turn in each) / 2**30 for name, each in turns.items()}
    ways = " / ".join(NAMES)
    trainer, bare, mfu = times("trainer"), times("bare"), used.get("holdfast")
    return [
        Figure(f"{size.name}: tokens/s, {ways}", shown(rates, "{:,.0f}")),
        Figure(f"{size.name}: holdfast / bare loop", _text(bare, "{:.3f}x")),
        Figure(
            f"{size.name}: holdfast / Trainer",
            _text(trainer, "{:.2f}x"),
            f">= {_TIMES}x on an H200" if has_goal else "",
            None if trainer is None or not has_goal else trainer >= _TIMES,
        ),
        Figure(
            f"{size.name}: MFU, {ways}",
            shown(used, "{:.1%}"),
            f">= {_MFU:.0%} on an H200" if has_goal else "",
            None if mfu is None or not has_goal else mfu >= _MFU,
        ),
        Figure(f"{size.name}: peak memory, {ways}", shown(peaks, "{:.1f} GiB")),
        Figure(
            f"{size.name}: largest relative difference of a loss in the first turn (else times are not compared)",
            ", ".join(f"{name} {distance:.0e}" for name, distance in far.items()) or NOT_MEASURED,
            f"<= {_SAME:.0e}",
            all(distance <= _SAME for distance in far.values()) if far else None,
        ),
    ]


def _text(value: float | None, form: str) -> str:
    return NOT_MEASURED if value is None else form.format(value)


if __name__ == "__main__":
    main("gpu", DESCRIPTION, measure, ("torch", "transformers", "accelerate"), add_options=add_options)
