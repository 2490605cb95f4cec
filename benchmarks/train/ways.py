"""What trains in a process of its own: Holdfast, the bare loop, Hugging Face Trainer."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from benchmarks.train.bare import BareLoop
from benchmarks.train.turns import Turns
from holdfast.adapters.shared.device.memory_gauge import memory_bytes
from holdfast.bootstrap.run import build
from holdfast.bootstrap.stages.alone import build_alone, choose_alone, prepare_alone
from holdfast.bootstrap.stages.build.compilation import compile_model
from holdfast.bootstrap.stages.choose.step_sizes import budget_of
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.events import RunStarted, StepCompleted
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bootstrap.stages.prepare.stage import PreparedRows
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.step_outcome import StepOutcome


@final
@dataclass(frozen=True, slots=True)
class _Loss:
    """A step's loss, read from the device only when the turn is over."""

    outcome: StepOutcome

    def __float__(self) -> float:
        return self.outcome.loss


def train_holdfast(plan: Mapping[str, Any], settings: TrainSettings) -> None:
    """Train as the command line does; the clock stops behind the run's own handlers and monitors."""
    run = build(settings, report=lambda _: None)
    turns = _turns(plan)
    run.subscribe(RunStarted, lambda _: turns.begin())
    run.subscribe(StepCompleted, lambda event: turns.step_ends(_Loss(event.outcome), event.outcome.num_tokens))
    run.run()


def train_bare(plan: Mapping[str, Any], settings: TrainSettings) -> None:
    """Train on the same batches by hand."""
    chosen = choose_alone(settings)
    rows = prepare_alone(chosen)
    model: Any = build_alone(chosen, rows.data.tokenizer).model
    loop = BareLoop(
        model.network,
        settings.optimizer,
        device=chosen.hardware["optimizer.device"],
        precision=chosen.hardware["optimizer.precision"],
    )
    batches = _batches(rows, plan["steps"])
    turns = _turns(plan)
    with ExitStack() as stack:
        compile_model(
            model,
            settings,
            budget_of(settings),
            chosen.hardware,
            stack,
            keep_choice=lambda _name, value, _reason: value,
            report=lambda _: None,
        )
        turns.begin()
        for batch in batches:
            loss = loop.step(batch)
            turns.step_ends(loss, batch.num_tokens)


def train_trainer(plan: Mapping[str, Any], settings: TrainSettings) -> None:
    """Train by Hugging Face Trainer: on the same rows, or on documents that it cuts and pads (``documents``)."""
    from benchmarks.train.trainer import train_watched

    chosen = choose_alone(settings)
    rows = prepare_alone(chosen)
    model: Any = build_alone(chosen, rows.data.tokenizer).model
    network = model.network
    network.set_attn_implementation("sdpa")  # what transformers takes where nobody chooses
    precision = chosen.hardware["optimizer.precision"]
    collate = None
    if plan["documents"]:
        examples, collate = _documents(rows, settings, settings.optimizer.num_rows * plan["steps"])
    else:
        ids = [torch.from_numpy(row) for batch in _batches(rows, plan["steps"]) for row in batch.input_ids]
        examples = [{"input_ids": row, "labels": row} for row in ids]
    options: dict[str, Any] = {"chosen": settings.optimizer, "precision": precision, "collate": collate}
    train_watched(network, examples, _turns(plan), tuned=plan["tuned"], **options)


def _documents(rows: PreparedRows, settings: TrainSettings, count: int) -> tuple[list[dict[str, Any]], Any]:
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    end = "<|endoftext|>"
    path = str(settings.tokenizer.path)  # type: ignore[union-attr]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, eos_token=end, pad_token=end)
    source = rows.data.run.source
    units = np.random.default_rng(0).permutation(np.asarray(source.units(), object))
    texts = (part.text for unit in units for part in source.read(unit) if isinstance(part, Document))
    length = settings.data.row_length
    encoded = tokenizer([text + end for text in islice(texts, count)], truncation=True, max_length=length)
    examples = [{"input_ids": ids} for ids in encoded["input_ids"]]
    return examples, DataCollatorForLanguageModeling(tokenizer, mlm=False)


def _batches(rows: PreparedRows, count: int) -> list[Batch]:
    return list(islice(rows.stream.batches(Cursor()), count))


def _turns(plan: Mapping[str, Any]) -> Turns:
    has_gpu = torch.cuda.is_available()
    finish = torch.cuda.synchronize if has_gpu else (lambda: None)
    return Turns(plan["a_turn"], finish=finish, memory=lambda: memory_bytes("cuda" if has_gpu else "cpu"))


def train(name: str, plan: Mapping[str, Any]) -> None:
    """Train as ``plan`` says, the way called ``name``: holdfast, bare or trainer."""
    ways = {"holdfast": train_holdfast, "bare": train_bare, "trainer": train_trainer}
    ways[name](plan, load_settings([], plan["overrides"], {}).settings)
