"""Options and results of text generation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of the next token: ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 exclude no token."""

    max_new_tokens: int = 128
    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The continuation ``text`` of ``prompt``, which is not part of it, by a sampling with ``seed``."""

    prompt: str
    text: str
    seed: int
