"""Rules for the row length and the step size if the settings do not set them; they depend on the run alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.training.budget import Budget

# Step Law: the best batch has 0.58 D^0.571 tokens, D being those of the run (Li et al., arXiv 2503.04715)
_FACTOR, _POWER = 0.58, 0.571
_FEWEST_TOKENS = 4096  # the law was fitted to runs of billions of tokens and gives too few for the smallest ones
_BYTES_A_TOKEN = 4
_SHORTEST, _LONGEST = 64, 4096
_SHARE, _SHARE_OF_WHOLE = 0.9, 0.99


def choose_rows(budget: Budget, length: int, ranks: int) -> tuple[int, str]:
    """Return the rows of a step over all ``ranks``, a power of two that the ranks can share, and the reason."""
    by_limit = [
        *([] if budget.tokens is None else [_FACTOR * budget.tokens**_POWER]),
        *([] if budget.steps is None else [(_FACTOR * budget.steps**_POWER) ** (1 / (1 - _POWER))]),  # of D = steps x B
    ]
    wanted = min(by_limit, default=0.0)
    tokens = max(wanted, _FEWEST_TOKENS)
    rows = 2 ** max(0, round(math.log2(tokens / length)))
    rows = -(-rows // ranks) * ranks
    law = f"the Step Law (arXiv 2503.04715) says about {wanted:,.0f} tokens"
    if not by_limit:
        law = "the tokens of the run are not known in advance"
    least = f", but the minimum is {_FEWEST_TOKENS:,}" if tokens > wanted else ""
    return rows, f"{law}{least}, in rows of {length}"


def choose_length(documents: Sequence[int], positions: int | None, *, are_divided: bool = True) -> tuple[int, str]:
    """Return the tokens of a row, and why: nine in ten of the ``documents`` (sizes in bytes) fit, the model permitting.

    If documents are not divided among rows (``are_divided``), 99 in 100 fit, as the others are left out or cut.
    ``positions`` is the maximum length of the model, None if it has no limit; without documents a row is as long as
    allowed.
    """
    most = min(_LONGEST, positions or _LONGEST)
    limit = (
        f"the model has {positions} positions" if most == positions else f"it is at most {_LONGEST} unless it is set"
    )
    if not documents:
        return most, f"the length of the documents is not known, and {limit}"
    share, words = (_SHARE, "nine in ten") if are_divided else (_SHARE_OF_WHOLE, "99 in 100")
    needed = sorted(documents)[math.ceil(share * len(documents)) - 1] / _BYTES_A_TOKEN
    length = 2 ** math.ceil(math.log2(max(needed, _SHORTEST)))
    sample = f"{words} of {len(documents)} documents have at most about {needed:,.0f} tokens"
    return (most, f"{sample}, and {limit}") if length > most else (length, sample)
