"""Replies of a model, token by token, to a text or to a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.application.training.end_ids import end_ids, new_ids, own_ends
from holdfast.application.training.generate import IncrementalDecoder, fitted, fitted_ids, generate
from holdfast.domain.training.conversation import ChatMessage, MessageRole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer


class ReplyEnd(StrEnum):
    """The ways in which a reply ends: by the model itself, at the maximum length, or because a person stopped it."""

    MODEL = "model"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReplyPrompt:
    """The ids that a model continues, the sampling, and the ids that end the reply.

    ``note`` is a sentence for a person if something was shortened.
    """

    ids: Sequence[int]
    sampling: Sampling
    ends: AbstractSet[int]
    note: str | None = None


def plain_prompt(trainable: Trainable, tokenizer: Tokenizer, text: str, sampling: Sampling) -> ReplyPrompt:
    """Return the prompt that continues ``text`` as ``generate`` does."""
    ids, sampling, note = fitted(trainable, tokenizer, text, sampling)
    return ReplyPrompt(ids, sampling, frozenset(end_ids(tokenizer, trainable)), note)


def chat_prompt(
    trainable: Trainable, template: ChatTemplate, messages: Sequence[ChatMessage], sampling: Sampling
) -> ReplyPrompt:
    """Return the prompt for a reply to ``messages``.

    If they are too long for the positions of the model, the oldest exchanges are left out, but not the system message.
    """
    positions = trainable.num_positions
    kept, ids = list(messages), template.encode(messages)
    first = int(kept[0].role is MessageRole.SYSTEM) if kept else 0
    while positions is not None and len(ids) + sampling.max_new_tokens > positions and len(kept) - first > 2:
        del kept[first : first + 2]
        ids = template.encode(kept)
    ids, sampling, note = fitted_ids(positions, ids, sampling)
    if (missing := len(messages) - len(kept)) and note is None:
        note = f"the model has {positions} positions: it does not see the first {missing} messages"
    return ReplyPrompt(ids, sampling, template.ends | set(own_ends(trainable)), note)


def stream_reply(
    trainable: Trainable,
    tokenizer: Tokenizer,
    prompt: ReplyPrompt,
    show: Callable[[int | None, str], object],
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> ReplyEnd:
    """Pass each new id to ``show`` with the text that is complete after it, in whole characters; return the end.

    The rest of an incomplete character comes last, without an id. ``is_stopped`` is asked at each token.
    """
    pieces, told = IncrementalDecoder(tokenizer), list[int]()

    def tell(token: int) -> None:
        if is_stopped():
            raise _Ended(ReplyEnd.STOPPED)
        if token in prompt.ends:
            raise _Ended(ReplyEnd.MODEL)
        told.append(token)
        show(token, pieces.after(token))

    try:
        trainable.stream(prompt.ids, prompt.sampling, end_of_text=tokenizer.end_of_text, tell=tell)
        end = ReplyEnd.LENGTH if len(told) == prompt.sampling.max_new_tokens else ReplyEnd.MODEL
    except _Ended as ended:
        end = ended.end
    if rest := pieces.rest():
        show(None, rest)
    return end


def stream_text(
    trainable: Trainable,
    tokenizer: Tokenizer,
    text: str,
    sampling: Sampling,
    show: Callable[[str], object],
    *,
    note: Callable[[str], object] = lambda _: None,
) -> None:
    """Pass the text of ``generate`` to ``show`` piece by piece as it is generated, in whole characters.

    ``note`` gets a sentence if something is shortened.
    """
    prompt = plain_prompt(trainable, tokenizer, text, sampling)
    if prompt.note is not None:
        note(prompt.note)
    show(text)
    stream_reply(trainable, tokenizer, prompt, lambda _, piece: show(piece))


def whole_reply(trainable: Trainable, tokenizer: Tokenizer, prompt: ReplyPrompt) -> tuple[str, ReplyEnd]:
    """Return the reply to ``prompt`` and how it ended; all ranks generate together."""
    kept = new_ids(trainable, prompt.ids, prompt.sampling, prompt.ends, tokenizer.end_of_text)
    is_ended = len(kept) < prompt.sampling.max_new_tokens
    return tokenizer.decode(kept), ReplyEnd.MODEL if is_ended else ReplyEnd.LENGTH


def sample_text(
    trainable: Trainable,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    text: str,
    sampling: Sampling,
    *,
    note: Callable[[str], object],
) -> str:
    """Return ``text`` with the model's continuation, or by a ``template`` with the reply to it on a line of its own.

    ``note`` gets a sentence if something is shortened.
    """
    if template is None:
        return generate(trainable, tokenizer, text, sampling, note=note)
    prompt = chat_prompt(trainable, template, [ChatMessage(MessageRole.USER, text)], sampling)
    if prompt.note is not None:
        note(prompt.note)
    return f"{text}\n{whole_reply(trainable, tokenizer, prompt)[0]}"


class _Ended(Exception):
    """Ends a generation from within; it never leaves this module."""

    def __init__(self, end: ReplyEnd) -> None:
        super().__init__(str(end))
        self.end = end
