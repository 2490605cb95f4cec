"""Rearranges a document so that a model learns to fill in its middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["psm", "spm"]


@dataclass(frozen=True)
class Marks:
    """The texts that announce the parts of a rearranged document."""

    prefix: str
    suffix: str
    middle: str

    def occur_in(self, text: str) -> bool:
        """Return whether ``text`` contains one of the marks, so that its parts could not be told apart."""
        return any(mark in text for mark in (self.prefix, self.suffix, self.middle))


def fill_in_the_middle(text: str, first: int, second: int, marks: Marks, order: Order) -> str:
    """Return ``text`` with its characters from ``first`` to ``second`` at the end.

    The order psm is prefix, suffix, middle; spm is suffix, prefix, middle, with the marks as in the joint training of
    both orders (Bavarian et al.: Efficient training of language models to fill in the middle, arXiv 2207.14255,
    section 3 and appendix D).
    """
    prefix, middle, suffix = text[:first], text[first:second], text[second:]
    if order == "psm":
        return f"{marks.prefix}{prefix}{marks.suffix}{suffix}{marks.middle}{middle}"
    return f"{marks.prefix}{marks.suffix}{suffix}{marks.middle}{prefix}{middle}"
