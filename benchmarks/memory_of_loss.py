"""How much memory a step takes for logits and loss: ours against the Hugging Face model's own.

``python -m benchmarks.memory_of_loss`` prints a table; each figure is from a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.smoke import end_smoke
from holdfast.adapters.shared.device.memory_gauge import peak_of_process
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.loss_selection import choose_loss

if TYPE_CHECKING:
    from torch import Tensor

WAYS = ("chunked", "plain", "huggingface")


def peak_of_loss(way: str, *, vocabulary: int, width: int, tokens: int) -> int:
    """Return the bytes by which one forward and backward in fp32 raises the memory of a new process at its highest.

    The model is a Llama of one layer with its gradients already there; ``way`` is chunked or plain, of
    ``CausalLanguageModel``, or huggingface: ``model(input_ids, labels=...)``.
    """
    arguments = [way, *map(str, (vocabulary, width, tokens))]
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory_of_loss", *arguments],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(child.stderr)
    return int(child.stdout.split()[-1])


def measure(way: str, vocabulary: int, width: int, tokens: int) -> int:
    """Return what ``peak_of_loss`` does, measured in this process."""
    network = _network(vocabulary, width)
    model = CausalLanguageModel(network)
    choose_loss(model, "plain" if way == "plain" else "auto")
    _loss(model, way, torch.zeros(1, 8, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]  # gradients and what a first step leaves behind
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(0, vocabulary, (4, tokens // 4), generator=generator)
    before = _start_again()
    _loss(model, way, input_ids).backward()  # type: ignore[no-untyped-call]
    return peak_of_process() - before


def _network(vocabulary: int, width: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=1,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config)


def _loss(model: CausalLanguageModel, way: str, input_ids: Tensor) -> Tensor:
    if way == "huggingface":
        loss: Tensor = model.network(input_ids=input_ids, labels=input_ids, use_cache=False).loss
        return loss
    positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
    summed: Tensor = model(input_ids=input_ids, position_ids=positions, loss_mask=positions > 0)
    return summed / input_ids.numel()


def _start_again() -> int:
    with suppress(OSError):  # elsewhere than on Linux the highest is that since the process began
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_of_process()


def compare() -> None:
    """End the process if the ways do not compute the same loss, or a way's memory cannot be measured."""
    network = _network(512, 32)
    input_ids = torch.arange(64).reshape(2, 32)
    losses = {}
    for way in WAYS:
        model = CausalLanguageModel(network)
        choose_loss(model, "plain" if way == "plain" else "auto")
        # transformers divides by the number of targets
        losses[way] = float(_loss(model, way, input_ids)) * (31 / 32 if way == "huggingface" else 1.0)
    furthest = max(abs(each / losses["plain"] - 1) for each in losses.values())
    peaks = {way: peak_of_loss(way, vocabulary=512, width=32, tokens=64) for way in WAYS[:1]}
    end_smoke([f"the losses differ by {furthest:.1e}: {losses}, {peaks}"] if furthest > 1e-5 else [])


def main(arguments: list[str]) -> None:
    """Print one figure for a child's arguments, or else the table; ``--smoke`` only tries it."""
    if arguments == ["--smoke"]:
        compare()
        return
    if arguments:
        print(measure(arguments[0], *map(int, arguments[1:])))
        return
    print("| width | " + " | ".join(f"{way}, MiB" for way in WAYS) + " | chunked : huggingface |")
    print("|---" * (len(WAYS) + 2) + "|")
    for width in (64, 256):
        peaks = [peak_of_loss(way, vocabulary=128_000, width=width, tokens=4096) for way in WAYS]
        cells = " | ".join(f"{peak / 2**20:.0f}" for peak in peaks)
        print(f"| {width} | {cells} | {peaks[0] / peaks[-1]:.3f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
