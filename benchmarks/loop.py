"""What the loop costs: Holdfast against a hand-written PyTorch loop on the same model, batches and precision."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.report import Figure, interval_of_median, main
from benchmarks.smoke import SMALL_RUN
from holdfast.adapters.event_bus.blinker import BlinkerEventBus
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.device.device_selection import choose_precision
from holdfast.bootstrap.run import build
from holdfast.bootstrap.stages.alone import choose_alone, prepare_alone
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.configs.sections.tokenizer import TrainTokenizerSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.events import StepCompleted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.batch import Batch

WARM_UP, PAIRS = 5, 40


@final
class BareLoop:
    """The loop that one would write by hand: Muon for hidden matrices, AdamW for the rest, autocast, clipping.

    These are the optimizers of the default run. The loss is read once a step.
    """

    def __init__(self, settings: TrainSettings, *, vocabulary_size: int, precision: str) -> None:
        assert isinstance(settings.model, HuggingFaceModelSettings)
        assert isinstance(settings.optimizer, TorchOptimizerSettings)
        factory = HuggingfaceModelFactory(config=settings.model.config, sequence_length=settings.data.row_length)
        model = factory.build(vocabulary_size=vocabulary_size, end_of_text=0, seed=settings.run.seed)
        self.model = model.network
        chosen = settings.optimizer
        assert chosen.algorithm == "muon"
        outer = {id(self.model.get_input_embeddings().weight), id(self.model.get_output_embeddings().weight)}
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        hidden = [p for p in matrices if id(p) not in outer]
        embeddings = [p for p in matrices if id(p) in outer]
        groups: list[dict[str, Any]] = [
            {"params": embeddings, "weight_decay": chosen.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(hidden, weight_decay=chosen.weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, betas=chosen.betas, eps=chosen.epsilon, fused=True),
        )
        # in Holdfast's order, so that the gradient's norm is equal to the bit
        self.parameters = [*hidden, *embeddings, *vectors]
        self.clip = chosen.clip
        self.autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext()

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Train on ``batch``; return its mean loss."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
        ids = torch.from_numpy(batch.input_ids)
        labels = torch.full_like(ids, -100)
        labels[:, :-1] = ids[:, 1:].masked_fill(~torch.from_numpy(batch.loss_mask)[:, 1:], -100)
        with self.autocast:
            logits = self.model(ids, position_ids=torch.from_numpy(batch.position_ids), use_cache=False).logits
            loss = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        torch.autograd.backward(loss * (1.0 / batch.num_targets))
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item() / batch.num_targets


@final
class Duel:
    """Alternates step by step: each of Holdfast's steps is followed by the bare loop's on the same batch."""

    def __init__(self, precision: str, folder: Path, *, pairs: int, more: Sequence[str]) -> None:
        self.steps = WARM_UP + pairs
        overrides = [
            *more,
            f"run.dir={folder}",
            f"run.budget.steps={self.steps}",
            "state_store.every=0",
            "evaluation.every=0",
            "evaluation.at_start=false",
            "optimizer.device=cpu",
            f"optimizer.precision={precision}",
            "model.loss=plain",  # as the other loop has it
        ]
        self.settings = load_settings([], overrides, {}).settings
        self.ours: list[float] = []
        self.bare: list[float] = []
        self.outside: list[float] = []
        self.reactions: list[float] = []
        self.losses: list[tuple[float, float]] = []
        bus = BlinkerEventBus()
        bus.subscribe(StepCompleted, self._before_handlers)
        self.run = build(self.settings, event_bus=bus)
        self.run.subscribe(StepCompleted, self._after_handlers)
        assert isinstance(self.settings.tokenizer, TrainTokenizerSettings)
        vocabulary = self.settings.tokenizer.vocabulary_size
        self.loop = BareLoop(self.settings, vocabulary_size=vocabulary, precision=precision)
        stream = prepare_alone(choose_alone(self.settings, report=print)).stream
        self.batches = list(islice(stream.batches(Cursor()), self.steps))

    def fight(self) -> None:
        """Run all steps; drop the warm-up."""
        self._resumed = time.perf_counter()
        self.run.run()
        self.loop_tokens = sum(batch.num_tokens for batch in self.batches) / len(self.batches)
        for values in (self.ours, self.bare, self.outside, self.reactions):
            del values[:WARM_UP]

    def _before_handlers(self, _: StepCompleted) -> None:
        self._published = time.perf_counter()

    def _after_handlers(self, event: StepCompleted) -> None:
        now = time.perf_counter()
        self.ours.append(now - self._resumed)
        self.outside.append(now - self._resumed - event.outcome.step_seconds)
        self.reactions.append(now - self._published)
        started = time.perf_counter()
        loss = self.loop.step(self.batches[event.progress.step - 1], event.outcome.learning_rate)
        self.bare.append(time.perf_counter() - started)
        self.losses.append((event.outcome.loss, loss))
        if event.progress.step == self.steps:
            self.monitors = _cpu_seconds("monitor ") / event.progress.step
        self._resumed = time.perf_counter()


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of one duel in the precision that this machine trains in, and one in the other."""
    precision, _ = choose_precision("auto", "cpu")
    pairs, repeats = (3, 1) if options.smoke else (PAIRS, 5)
    more = SMALL_RUN if options.smoke else ()
    with tempfile.TemporaryDirectory() as folder:
        own = [f"run.cache_dir={folder}"] if options.smoke else []
        duel = Duel(precision, Path(folder), pairs=pairs, more=[*more, *own])
        duel.fight()
    furthest = max(abs(ours - bare) / bare for ours, bare in duel.losses)
    if furthest > 0.0:
        message = f"the loops do not compute the same, so their times do not compare: losses differ by {furthest:.1e}"
        raise SystemExit(message)
    middle, low, high = interval_of_median([bare / ours for ours, bare in zip(duel.ours, duel.bare, strict=True)])
    outside = sum(duel.outside) / sum(duel.ours)
    reactions = statistics.median(duel.reactions) * 1e6
    rate = duel.loop_tokens / statistics.median(duel.ours)
    helped = statistics.median(_seconds([sys.executable, "-m", "application", "--help"]) for _ in range(repeats))
    light = "import sys, holdfast.bootstrap.run; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    is_light = subprocess.run([sys.executable, "-c", light], check=False).returncode == 0
    return [
        Figure("largest difference of a step's loss (else nothing is timed)", f"{furthest:.0f}", "0", furthest == 0.0),
        Figure(
            f"tokens/s, holdfast / bare loop, {precision}, median of {pairs} pairs [95 % interval]",
            f"{middle:.3f} [{low:.3f}, {high:.3f}]",
            ">= 0.98 (the interval reaches it)",
            high >= 0.98,
        ),
        Figure(f"tokens/s of holdfast, {precision}, median", f"{rate:,.0f}"),
        Figure("host time outside the engine / step time", f"{outside:.2%}", "<= 1 %", outside <= 0.01),
        Figure("bus, handlers and monitors a step, median", f"{reactions:.0f} µs", "<= 100 µs", reactions <= 100),
        Figure("processor time of the monitors' own threads, a step, mean", f"{duel.monitors * 1e6:.0f} µs"),
        Figure("bf16 / fp32, tokens/s, median of alternating steps", _precisions(more, pairs)),
        Figure("`python -m application --help`, median of 5", f"{helped:.2f} s", "<= 0.5 s", helped <= 0.5),
        Figure("importing `bootstrap` leaves torch and transformers alone", str(is_light), "True", is_light),
    ]


def _cpu_seconds(prefix: str) -> float:
    idents = [thread.ident for thread in threading.enumerate() if thread.name.startswith(prefix)]
    assert idents, f"no thread is called {prefix}"
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


def _precisions(more: Sequence[str], pairs: int) -> str:
    settings = load_settings([], [*more, "optimizer.device=cpu"], {}).settings
    loops = {kind: BareLoop(settings, vocabulary_size=4096, precision=kind) for kind in ("fp32", "bf16")}
    rows, length = settings.optimizer.num_rows, settings.data.row_length
    document = np.random.default_rng(0).integers(0, 4096, rows * length).astype(np.uint16)
    batch = read_rows(place_rows([document], ConcatPacking(length)), length)
    ratios = []
    for number in range(3 + min(pairs, 12)):
        seconds = {kind: _timed(loop, batch) for kind, loop in loops.items()}
        ratios += [seconds["fp32"] / seconds["bf16"]] * (number >= 3)
    middle, low, high = interval_of_median(ratios)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _timed(loop: BareLoop, batch: Batch) -> float:
    started = time.perf_counter()
    loop.step(batch, 1e-3)
    return time.perf_counter() - started


def _seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main(
        "loop",
        "The model, data, batches and optimizer of the default run on a CPU. Holdfast's loop with its default handlers "
        "and monitors and a hand-written PyTorch loop alternate step by step in one process. Some handlers check the "
        "disk or the memory once a second. If a pair of steps, one of each loop, takes longer than a second, each "
        "step of Holdfast's loop includes these checks.",
        measure,
        ("torch", "transformers", "accelerate", "numpy"),
    )
