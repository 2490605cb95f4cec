"""Special tokens that are written out in messages, hidden from a template so that they stay ordinary text."""

from __future__ import annotations

import re
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, final

from holdfast.adapters.tokenizer.hf_core import special_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer as Core

_OPEN, _CLOSE = "\ue000", "\ue001"  # of private use: around the number of a special token in a message
_HIDDEN = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class Piece(NamedTuple):
    """A part of a rendered text from ``begin`` on; ``token`` is the special token that was hidden there, if any."""

    begin: int
    text: str
    token: str | None


@final
class HiddenSpecials:
    """Replaces the special tokens of ``core`` in messages by numbers between two private characters, and finds them."""

    def __init__(self, core: Core) -> None:
        added = core.get_added_tokens_decoder()
        self._special = sorted((added[number].content for number in special_ids(core)), key=len, reverse=True)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that finds the special tokens which a template writes."""
        return re.compile("|".join(map(re.escape, self._special)))

    def hide(self, value: Any) -> Any:
        """Return ``value``, of JSON's types, with the special tokens in all of its texts hidden."""
        if isinstance(value, str):
            own = value.replace(_OPEN, "\N{REPLACEMENT CHARACTER}")
            return self.pattern.sub(lambda found: f"{_OPEN}{self._special.index(found[0])}{_CLOSE}", own)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return [self.hide(item) for item in value] if isinstance(value, list | tuple) else value

    def shown(self, rendered: str) -> str:
        """Return ``rendered`` with its hidden tokens written out, for a person."""
        return _HIDDEN.sub(lambda found: self._special[int(found[1])], rendered)

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """Yield the hidden tokens of ``rendered`` and the texts between them, in order."""
        places = [(0, 0), *(found.span() for found in _HIDDEN.finditer(rendered)), (len(rendered),) * 2]
        for (start, begin), (end, _) in pairwise(places):
            if start != begin:
                yield Piece(start, rendered[start:begin], self._special[int(rendered[start + 1 : begin - 1])])
            if begin != end:
                yield Piece(begin, rendered[begin:end], None)
