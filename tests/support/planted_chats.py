"""Conversations with a planted format, a base model for them, and the settings of runs of a minute."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from tests.support.command_line import SAME_RHYTHM

if TYPE_CHECKING:
    from pathlib import Path

WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "jasper", "kelp", "lotus"),
    *("maple", "nectar", "olive", "pearl", "quartz", "raven", "sable", "topaz", "umber", "violet", "willow"),
    *("yarrow", "zinc"),
)
_ASKED = (
    *("Say {}", "Name {}.", "What is {}?", "Please write {} for me.", "I want {}", "The word is {}."),
    *("Give me {} now", "Is it {}?", "Now {}!", "Only {} please", "It was {}, was it?", "Read {} aloud."),
)
SPECIAL = "tokenizer.special_tokens=[<|im_start|>,<|im_end|>]"


def answer_to(word: str) -> str:
    """Return the answer in the planted format."""
    return f"<answer>{word}</answer>"


def prompts(seed: int = 0) -> list[tuple[str, str]]:
    """Return all prompts with their words, shuffled."""
    found = [(asked.format(word), word) for asked in _ASKED for word in WORDS]
    random.Random(seed).shuffle(found)
    return found


def write_chats(path: Path, asked: list[tuple[str, str]], times: int = 1) -> None:
    """Write conversations that answer each of ``asked``, ``times`` in another order, with another system message."""
    generator = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(times):
            for prompt, word in generator.sample(asked, len(asked)):
                messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer_to(word)}]
                file.write(json.dumps({"messages": messages, "number": number}) + "\n")


def write_plain(path: Path, asked: list[tuple[str, str]]) -> None:
    """Write the prompts as plain text, a few in a document, for a base model to learn."""
    with path.open("w", encoding="utf-8") as file:
        for begin in range(0, len(asked), 4):
            text = "\n".join(prompt for prompt, _ in asked[begin : begin + 4])
            file.write(json.dumps({"text": f"{text}\n<answer>\n</answer>\n"}) + "\n")


def of_a_minute(home: Path, name: str, *more: str) -> list[str]:
    """Return the settings that all runs share."""
    return [
        f"run.dir={home / name}",
        f"run.cache_dir={home / 'cache'}",
        "data.sequence_length=64",
        "data.holdout=0.05",
        "tokenizer.backend=huggingface",
        "model.kind=decoder",
        "optimizer.device=cpu",
        "optimizer.precision=fp32",
        "optimizer.batch_size=16",
        "optimizer.learning_rate=3e-3",
        "evaluation.every=0",
        "evaluation.at_start=false",
        "sample.max_new_tokens=8",
        "run.report=false",
        SAME_RHYTHM,
        *more,
    ]


def base(home: Path) -> list[str]:
    """Return the settings of a base model, which learns plain text."""
    shape = ("hidden_size=96", "intermediate_size=256", "num_hidden_layers=2", "num_attention_heads=4")
    return of_a_minute(
        home,
        "base",
        f"data.path={home / 'plain.jsonl'}",
        "tokenizer.vocabulary_size=400",
        SPECIAL,
        *(f"model.{each}" for each in shape),
        "run.budget.steps=100",
    )


def fine_tuned(home: Path, name: str, model: Path, *more: str) -> list[str]:
    """Return the settings that fine-tune the base model at ``model`` on the conversations in ``home``."""
    return of_a_minute(
        home,
        name,
        f"data.path={home / 'chats.jsonl'}",
        "data.task=chat",
        "data.chat.template=chatml",
        f"model.path={model}",
        f"tokenizer.path={model / 'tokenizer.json'}",
        "run.budget.steps=400",
        "state_store.every=50",
        *more,
    )
