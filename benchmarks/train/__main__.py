"""How fast a model trains on a CPU, and what its loss takes: against a bare PyTorch loop and Hugging Face Trainer."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.memory_of_loss import peak_of_loss
from benchmarks.report import Figure, main
from benchmarks.train.material import prepare
from benchmarks.train.speed import WARM_UP, Contest, measure_documents, measure_speed
from benchmarks.turns import WayEndedError
from holdfast.adapters.shared.device.device_selection import choose_precision

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class _Scale:
    pairs: int
    vocabulary: int
    length: int
    rows: int
    width: int
    layers: int

    @property
    def overrides(self) -> tuple[str, ...]:
        fields = {
            "hidden_size": self.width,
            "intermediate_size": self.width * 8 // 3,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.width // 64,
            "num_key_value_heads": self.width // 192,
        }
        shape = (f"model.config.{name}={value}" for name, value in fields.items())
        return *shape, f"optimizer.batch_size={self.rows}"


_WHOLE = _Scale(pairs=25, vocabulary=8192, length=512, rows=8, width=384, layers=6)
_SMALL = _Scale(pairs=1, vocabulary=512, length=64, rows=2, width=192, layers=1)
_LOSS = {"vocabulary": 128_000, "width": 256, "tokens": 4096}

DESCRIPTION = (
    f"Three programs train a Llama of width {_WHOLE.width} with {_WHOLE.layers} layers and {_WHOLE.vocabulary} ids "
    f"from scratch, with the same initial weights, on batches of {_WHOLE.rows} rows of {_WHOLE.length} tokens, on a "
    "CPU, in the precision that Holdfast chooses there. Each program runs in its own process, which is stopped "
    "during the steps of the others. The first program is Holdfast as `holdfast train` runs it, with "
    "its default handlers and monitors, but no evaluation. The second program is a hand-written PyTorch loop with "
    "the same options (autocast, fused AdamW, the chunked loss, the settings of the process for its libraries). The "
    "third program is Hugging Face Trainer with its defaults, except for bf16, Holdfast's values for AdamW, no "
    "saving, and rows in order. Each document fills a row exactly, so no program packs or pads. In the measurement "
    "on documents, which are the files of Python's library, Trainer cuts each document to the length of a row and "
    "pads it to the longest document of its batch, and Holdfast packs the documents. The memory is that of one "
    "forward and one backward pass of a model of one layer, in fp32."
)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures."""
    scale = _SMALL if options.smoke else _WHOLE
    precision, _ = choose_precision("auto", "cpu")
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        rows = scale.rows * (WARM_UP + scale.pairs)
        material = prepare(Path(folder), vocabulary=scale.vocabulary, length=scale.length, rows=rows)
        contest = Contest(material, scale.overrides, pairs=scale.pairs, precision=precision, is_trial=options.smoke)
        try:
            print("measuring rows", file=sys.stderr)
            figures = [*measure_speed(contest)]
            print("measuring documents", file=sys.stderr)
            figures += measure_documents(contest)
        except WayEndedError as error:
            raise SystemExit(str(error)) from error
    if not options.smoke:
        print("measuring memory", file=sys.stderr)
        figures += _measure_memory()
    return figures


def _measure_memory() -> Sequence[Figure]:
    ours, theirs = (peak_of_loss(way, **_LOSS) for way in ("chunked", "huggingface"))
    share = ours / theirs
    name = (
        f"peak memory of logits and loss, {_LOSS['vocabulary']} ids, {_LOSS['tokens']} tokens, holdfast / transformers"
    )
    return [Figure(name, f"{share:.3f} ({ours >> 20:,} / {theirs >> 20:,} MiB)", "<= 0.5x", share <= 0.5)]


if __name__ == "__main__":
    main("train", DESCRIPTION, measure, ("torch", "transformers", "accelerate", "numpy"))
