"""The token ids at which a model stops by itself."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from holdfast.ports.optimizer import HasOwnEnds
from holdfast.ports.tokenizer import HasChatTemplate

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.tokenizer import Tokenizer


def end_ids(tokenizer: Tokenizer, trainable: Trainable | None = None) -> Sequence[int]:
    """Return the ids that end a text or a reply: end-of-text, then the others, ascending.

    They are those of the chat template, and those at which the model of ``trainable`` stops by its own settings.
    """
    template = tokenizer.chat_template if isinstance(tokenizer, HasChatTemplate) else None
    others = {*own_ends(trainable), *(() if template is None else template.ends)}
    return [tokenizer.end_of_text, *sorted(others - {tokenizer.end_of_text})]


def own_ends(trainable: Trainable | None) -> Sequence[int]:
    """Return the ids at which the model of ``trainable`` stops by its own settings, none if it knows none."""
    return trainable.own_ends if isinstance(trainable, HasOwnEnds) else ()


def end_of_turn(ends: Collection[int], end_of_text: int) -> int:
    """Return the id of ``ends`` that usually ends a reply: one of the template, else ``end_of_text``."""
    return min(set(ends) - {end_of_text}, default=end_of_text)


def new_ids(
    trainable: Trainable, prompt: Sequence[int], sampling: Sampling, ends: Collection[int], end_of_text: int
) -> Sequence[int]:
    """Return the ids that ``trainable`` writes after ``prompt``, up to the first of ``ends``.

    All ranks generate together. They stop at the end of a turn; what is written after another end is left out.
    """
    ids = trainable.generate(prompt, sampling, end_of_text=end_of_turn(ends, end_of_text))
    return list(takewhile(lambda token: token not in ends, ids))
