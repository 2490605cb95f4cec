"""The differences between two tokenizers, for a model that was trained with one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from holdfast.ports.tokenizer import ids_around

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.ports.tokenizer import Tokenizer

_ORDINARY = "Fünf größere Äpfel, and  the Quick brown\nfox.\n"
_A_SPACE = 1  # byte, that some tokenizers put before a text
_PROBES = (
    "The quick brown fox jumps over 13 lazy dogs, doesn't it?",
    "def main():\n\treturn {'a': [1, 2.5], \"b\": None}\n\n    # 100%\r\n",
    "Fünf größere Äpfel, une façade, señor, żółć; Привет, мир! 你好,世界。 こんにちは 안녕 😀🚀",
    "https://example.org/a_b-c?d=e&f=%20 \\frac{x}{y} \x00\x7f\u00a0\u2028",
    " " * 17 + "\t\t\n\n\n" + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + "0123456789" * 3,
)


def find_difference(own: Tokenizer, given: Tokenizer) -> str | None:
    """Return a clause on how ``given`` differs from ``own``, the tokenizer of a model; None if it does not.

    The comparison covers the number of ids, the token of each id, special tokens included, and the ids of difficult
    texts.
    """
    if own.fingerprint() == given.fingerprint():
        return None
    if own.vocabulary_size != given.vocabulary_size:
        return f"it has {given.vocabulary_size:,} ids and the model's has {own.vocabulary_size:,}"
    return next(_differences(own, given), None)


def uncounted_text(tokenizer: Tokenizer) -> str | None:
    """Return a sentence if the bytes of the tokens of a text are not about those of the text, as text is discarded."""
    ids = tokenizer.encode([_ORDINARY]).ids
    counted, true = int(tokenizer.token_bytes[ids].sum()), len(_ORDINARY.encode())
    if abs(counted - true) <= _A_SPACE:
        return None
    return (
        f"the tokenizer changes text (its tokens hold {counted} bytes of the {true} of {_ORDINARY!r}), so bits per "
        "byte count the bytes of its tokens and not those of the documents: compare them only between runs with it"
    )


def _differences(own: Tokenizer, given: Tokenizer) -> Iterator[str]:
    if own.end_of_text != given.end_of_text:
        yield f"it ends a document with id {given.end_of_text} and the model's with {own.end_of_text}"
    if (theirs := _around(given)) != (ours := _around(own)):
        yield f"it puts the ids {theirs} around a document and the model's {ours}, which tokenizer.add_bos can change"
    for probe in _PROBES:
        if own.encode([probe]).ids.tolist() != given.encode([probe]).ids.tolist():
            yield f"it gives other ids for {probe[:24]!r} than the model's"
    for special in np.flatnonzero((own.token_bytes == 0) != (given.token_bytes == 0)):
        yield f"id {special} is special in only one of them"
    for number in range(given.vocabulary_size):
        if own.decode([number]) != given.decode([number]):
            yield f"id {number} is {given.decode([number])!r} and the model's is {own.decode([number])!r}"


def _around(tokenizer: Tokenizer) -> str:
    before, after = ids_around(tokenizer)
    return f"{[*before]} and {[*after]}"
