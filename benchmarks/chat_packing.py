"""Conversations in packed rows against padded batches of the same conversations: ``python -m benchmarks.chat_packing``.

Both train one small Llama, with the same initial weights, on the same conversations in the same order, and in turns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
import torch

from benchmarks.report import Figure, interval_of_median, main
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.application.training.step_engine import StepEngine
from holdfast.domain.data.packing import BestFitPacking, place_rows
from holdfast.domain.data.row_index import read_rows

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch

LONGEST, SHORTEST = 640, 64  # tokens of a conversation
CONVERSATIONS = 16  # in a batch
PAIRS, WARM_UP = 21, 2
_VOCABULARY = 8192
_RATE = 1e-4
_SAME = 1e-5  # the largest relative difference of the loss of a step
_GOAL = 2.0
_LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": LONGEST,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The ``ids`` of a conversation, uint16 (tokens,), and whether each belongs to a reply, bool (tokens,)."""

    ids: NDArray[np.uint16]
    is_reply: NDArray[np.bool_]


def conversations(number: int, count: int = CONVERSATIONS) -> list[Conversation]:
    """Return the ``count`` conversations of the batch ``number``: 64 to 640 tokens, equally many an octave."""
    chance = np.random.default_rng(number)
    found = []
    for length in np.exp(chance.uniform(np.log(SHORTEST), np.log(LONGEST), count)).astype(int).tolist():
        turns = np.cumsum(chance.integers(8, 64, length))
        is_reply = np.searchsorted(turns, np.arange(length), side="right") % 2 == 1
        is_reply[-1] = True
        found.append(Conversation(chance.integers(0, _VOCABULARY, length, np.uint16), is_reply))
    return found


def packed(batch: Sequence[Conversation]) -> Batch:
    """Return the conversations as packed rows, each as long as the longest conversation that there can be."""
    places = place_rows([each.ids for each in batch], BestFitPacking(LONGEST), [each.is_reply for each in batch])
    return read_rows(places, LONGEST)


class Way(Protocol):
    """A way to train on batches."""

    def step(self, number: int) -> float:
        """Train on the batch ``number``; return its mean loss."""
        ...


@final
class Packed(Way):
    """Holdfast's engine on packed rows."""

    def __init__(self, count: int) -> None:
        self._count = count
        optimizer = AccelerateOptimizer(device="cpu", precision="fp32")
        self._engine = StepEngine(optimizer.prepare(_model()), micro_batch=CONVERSATIONS)

    def step(self, number: int) -> float:
        """Train on the batch ``number``; return its mean loss."""
        batch = packed(conversations(number, self._count))
        outcome = self._engine.step(
            batch,
            step=number + 1,
            learning_rate=_RATE,
            num_targets=batch.num_targets,
            num_tokens=batch.num_tokens,
            should_stop=lambda: False,
            on_applied=lambda *_: None,
        )
        return outcome.loss


@final
class Padded(Way):
    """The loop of the usual trainers: one conversation a row, padded to the longest, and labels for the replies only.

    The loss is that of transformers, over all logits.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._network: Any = _model().network.train()
        parameters = list(self._network.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=_RATE, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(self, number: int) -> float:
        """Train on the batch ``number``; return its mean loss."""
        batch = conversations(number, self._count)
        shape = (len(batch), max(len(each.ids) for each in batch))
        ids, labels = torch.zeros(shape, dtype=torch.int64), torch.full(shape, -100)
        mask = torch.zeros(shape, dtype=torch.int64)
        for row, each in enumerate(batch):
            length = len(each.ids)
            tokens = each.ids.astype(np.int64)
            ids[row, :length] = torch.from_numpy(tokens)
            labels[row, :length] = torch.from_numpy(np.where(each.is_reply, tokens, -100))
            mask[row, :length] = 1
        loss = self._network(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())


def _model() -> Any:
    factory = HuggingfaceModelFactory(config=_LLAMA, attention="sdpa")
    return factory.build(vocabulary_size=_VOCABULARY, end_of_text=_VOCABULARY - 1, seed=0)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the speed of packed rows as a multiple of that of padded batches."""
    pairs, count = (1, 4) if options.smoke else (PAIRS, CONVERSATIONS)
    ways: tuple[Way, Way] = (Packed(count), Padded(count))
    seconds: list[tuple[float, float]] = []
    farthest = 0.0
    for number in range(WARM_UP + pairs):
        took, losses = [0.0, 0.0], [0.0, 0.0]
        for way in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            losses[way] = ways[way].step(number)
            took[way] = time.perf_counter() - began
        farthest = max(farthest, abs(losses[0] / losses[1] - 1))
        seconds.append((took[0], took[1]))
    if farthest > _SAME:
        message = f"the ways do not compute the same, so their times do not compare: losses differ by {farthest:.1e}"
        raise SystemExit(message)
    return _figures(seconds[WARM_UP:], farthest)


def _figures(seconds: Sequence[tuple[float, float]], farthest: float) -> Sequence[Figure]:
    batches = [conversations(number) for number in range(WARM_UP, WARM_UP + len(seconds))]
    tokens = [sum(len(each.ids) for each in batch) for batch in batches]
    places = [
        (packed(batch).input_ids.size, len(batch) * max(len(each.ids) for each in batch)) for batch in batches
    ]  # fmt: skip
    filled = [sum(tokens) / sum(column) for column in zip(*places, strict=True)]
    rates = [sum(tokens) / sum(column) for column in zip(*seconds, strict=True)]
    middle, low, high = interval_of_median([theirs / ours for ours, theirs in seconds])
    share = sum(packed(batch).num_targets for batch in batches) / sum(tokens)
    return [
        Figure("largest relative difference of a step's loss (else nothing is timed)", f"{farthest:.0e}"),
        Figure(
            f"tokens/s, packed / padded, median of {len(seconds)} pairs [95 % interval]",
            f"{middle:.2f}x [{low:.2f}, {high:.2f}]",
            f">= {_GOAL}x",
            middle >= _GOAL,
        ),
        Figure("tokens/s, packed / padded", " / ".join(f"{rate:,.0f}" for rate in rates)),
        Figure("share of places that hold a token, packed / padded", " / ".join(f"{each:.0%}" for each in filled)),
        Figure("share of tokens that are trained on", f"{share:.0%}"),
    ]


if __name__ == "__main__":
    main(
        "chat_packing",
        f"Batches of {CONVERSATIONS} conversations of {SHORTEST} to {LONGEST} tokens, in which replies are trained on. "
        "Holdfast packs them into rows without cutting one, and computes the logits of the replies alone, by the "
        "chunked loss. The other loop pads each conversation to the longest of its batch, as the usual trainers do, "
        "and takes the loss of transformers. Both train a Llama of width 256 with 4 layers and 8192 ids in fp32 on a "
        "CPU, with the same weights at first, in one process and in turns; the one that begins alternates.",
        measure,
        ("torch", "transformers", "numpy"),
    )
