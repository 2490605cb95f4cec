"""Generates text with a trained model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.end_ids import end_ids, new_ids
from holdfast.ports.tokenizer import ids_around

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.tokenizer import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the text that a tokenizer decodes an incomplete character to


def generate(
    trainable: Trainable,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    note: Callable[[str], object] = lambda _: None,
) -> str:
    """Return ``prompt`` and the model's continuation; an empty prompt starts a new document.

    A length beyond the model's positions is shortened, as ``fitted`` does, and ``note`` gets a sentence about it.
    """
    ids, sampling, shortened = fitted(trainable, tokenizer, prompt, sampling)
    if shortened is not None:
        note(shortened)
    ends = end_ids(tokenizer, trainable)
    return prompt + tokenizer.decode(new_ids(trainable, ids, sampling, ends, tokenizer.end_of_text))


def fitted(
    trainable: Trainable, tokenizer: Tokenizer, prompt: str, sampling: Sampling
) -> tuple[Sequence[int], Sampling, str | None]:
    """Return the ids of ``prompt`` and the sampling, both shortened to the positions of the model.

    The third value is a sentence for a person if something was shortened, else None. New tokens are cut first, down to
    half of the positions, then the beginning of the prompt, but not the special ids before it.
    """
    prefix, own = ids_around(tokenizer)[0], [int(token) for token in tokenizer.encode([prompt]).ids]
    ids = [*prefix, *own] or [tokenizer.end_of_text]
    kept, sampling, note = fitted_ids(trainable.num_positions, ids, sampling)
    return [*prefix, *kept[len(prefix) :]] if len(kept) > len(prefix) else kept, sampling, note


def fitted_ids(
    positions: int | None, ids: Sequence[int], sampling: Sampling
) -> tuple[Sequence[int], Sampling, str | None]:
    """Return ``ids`` and ``sampling`` shortened to ``positions``, as ``fitted`` does; None is no limit."""
    wanted = sampling.max_new_tokens
    if positions is None or len(ids) + wanted <= positions:
        return ids, sampling, None
    kept = min(len(ids), max(positions - wanted, positions // 2, 1))
    new = max(1, min(wanted, positions - kept))
    note = f"the model has {positions} positions: "
    note += f"it writes {new} new tokens at most, not {wanted}" if new < wanted else "they do not hold the whole prompt"
    if kept < len(ids):
        note += f", and reads the last {kept} of the {len(ids)} tokens of the prompt"
    return ids[-kept:], replace(sampling, max_new_tokens=new), note


@final
class IncrementalDecoder:
    """Turns the ids of one text, one after another, into pieces of whole characters that join to the decoded text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # from the last piece on, as a tokenizer may decode the start of a text differently
        self._num_shown = 0

    def after(self, token: int) -> str:
        """Return the text that is complete after ``token``; empty while a character is incomplete."""
        self._ids.append(token)
        text = self._new()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._ids = self._ids[self._num_shown :]
        self._num_shown = len(self._ids)
        return text

    def rest(self) -> str:
        """Return the remaining text after the last token."""
        text = self._new()
        self._num_shown = len(self._ids)
        return text

    def _new(self) -> str:
        shown = self._tokenizer.decode(self._ids[: self._num_shown])
        return self._tokenizer.decode(self._ids)[len(shown) :]
