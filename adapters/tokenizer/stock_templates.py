"""Chat templates that need no file."""

from __future__ import annotations

import json
from typing import NamedTuple


class StockTemplate(NamedTuple):
    """The source of a template, and the special tokens that it writes beside those of the tokenizer's configuration."""

    source: str
    special_tokens: tuple[str, ...] = ()


_CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_PLAIN = (
    "{%- for message in messages %}"
    "{{- '### ' + message.role + '\\n' + message.content }}"
    "{{- (eos_token if message.role == 'assistant' else '') + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '### assistant\\n' }}{%- endif %}"
)
STOCK_TEMPLATES = {
    "chatml": StockTemplate(_CHATML, ("<|im_start|>", "<|im_end|>")),
    "plain": StockTemplate(_PLAIN),
}
"""The templates by the names that settings use."""


def literal(text: str) -> str:
    """Return the source of a template that writes ``text``; empty for no text."""
    return f"{{{{- {json.dumps(text)} }}}}" if text else ""
