"""Stock chat templates with tokenizers, ten conversations, and the documents that are expected of them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, trainers

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.domain.training.conversation_record import conversation_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.training.conversation_record import Conversation

FOLDER = Path(__file__).with_name("chat_templates")
CONVERSATIONS: Mapping[str, Mapping[str, object]] = json.loads(
    (FOLDER / "conversations.json").read_text(encoding="utf-8")
)
_CORPUS = ["the quick brown fox jumps over the lazy dog", "a user and an assistant", "\n\n  \n", "Hello.\n\n"]
_SPECIAL = {
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "qwen3": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "gemma3": ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    "gpt_oss": ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"),
    "mistral": (
        *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "chatml": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "thoughts": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
}
_CONFIG = {
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "qwen3": {"eos_token": "<|im_end|>"},
    "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "gpt_oss": {"eos_token": "<|return|>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "chatml": {"eos_token": "<|endoftext|>"},
    "thoughts": {"eos_token": "<|endoftext|>"},
}
TEMPLATES = ("llama3", "qwen3", "gemma3", "gpt_oss", "mistral", "chatml")


@cache
def templated(name: str, template: str | None = None) -> HuggingfaceTokenizer:
    """Return a small byte-level tokenizer with the special tokens of the template ``name``, and another template."""
    core = byte_level(_SPECIAL[name])
    config: dict[str, object] = {**_CONFIG[name]}
    source = template or (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    beside = {"tokenizer_config.json": json.dumps(config).encode(), "chat_template.jinja": source.encode()}
    end = str(config["eos_token"])
    return HuggingfaceTokenizer(core.to_str(), name=name, end_of_text=end, beside=beside, backend="huggingface")


def byte_level(special: Sequence[str]) -> Core:
    """Return a byte-level tokenizer with ``special`` tokens and merges of common words."""
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_CORPUS * 20, trainer)
    return core


def conversation(name: str) -> Conversation:
    """Return one of the ten conversations."""
    return conversation_of(CONVERSATIONS[name])


@cache
def expected(template: str) -> Mapping[str, Sequence[str] | str]:
    """Return, by conversation, the expected documents with ``⟦`` and ``⟧`` around replies, or the expected refusal.

    A document that begins with ``...`` begins with any text that is not trained on.
    """
    found: dict[str, list[str] | str] = {}
    name = ""
    for line in (FOLDER / f"{template}.expected").read_text(encoding="utf-8").splitlines():
        text = line[2:].replace("\\n", "\n")
        if not line.startswith(("- ", "! ", "  ")):
            name = line.removesuffix(":")
            found[name] = []
        elif line.startswith("! "):
            found[name] = text
        else:
            documents = found[name]
            assert isinstance(documents, list)
            if line.startswith("- "):
                documents.append(text)
            else:
                documents[-1] += text
    return found


def marked(tokenizer: HuggingfaceTokenizer, ids: Sequence[int], loss_mask: Sequence[bool]) -> str:
    """Return the text of ``ids``, with ``⟦`` and ``⟧`` around each run of ids that are trained on."""
    text, run, inside = "", [], False
    for number, is_trained in [*zip(ids, loss_mask, strict=True), (None, None)]:
        if is_trained is not inside or number is None:
            part = tokenizer.decode_all(run)
            text += f"⟦{part}⟧" if inside else part
            run, inside = [], bool(is_trained)
        if number is not None:
            run.append(int(number))
    return text
