"""The replies in a rendered conversation: the part of the text that a model is trained to write."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.training.conversation import ChatMessage, Conversation

TrainOn = Literal["all_assistant", "last_assistant"]

_INLINE_REASONING = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_SHOWN = 60
_END_OF_REASONING = "</think>"


class Render(Protocol):
    """A chat template."""

    def __call__(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = False) -> str:
        """Return the text of ``messages``, and of the beginning of a reply if ``add_generation_prompt``."""
        ...


@dataclass(frozen=True, slots=True)
class RenderedReplies:
    """The text of a conversation, or of its beginning, and the ``spans`` in it that are replies to train on.

    A span is the position of its first character and that after its last one; spans are in order and do not overlap.
    ``is_ended`` says whether the text ends with a special token, which ends the last reply.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    is_ended: bool


def without_reasoning(conversation: Conversation) -> Conversation:
    """Return ``conversation`` without the reasoning of its replies, be it a field or a ``<think>`` before the text."""
    messages = [
        replace(each, reasoning=None, text=_INLINE_REASONING.sub("", each.text, count=1)) if _thinks(each) else each
        for each in conversation.messages
    ]
    return replace(conversation, messages=tuple(messages))


def _thinks(message: ChatMessage) -> bool:
    return message.is_reply and bool(message.reasoning or _INLINE_REASONING.match(message.text))


def replies_to_train(messages: Sequence[ChatMessage], train_on: TrainOn) -> Sequence[int]:
    """Return the numbers of the messages to train on; raises ``DataError`` if there are none."""
    replies = [number for number, message in enumerate(messages) if message.is_reply]
    if train_on == "last_assistant":
        replies = replies[-1:]
    chosen = [number for number in replies if messages[number].is_trained]
    if not chosen:
        msg = "has no reply of the assistant to train on: add one, or leave the record out"
        raise DataError(msg)
    return chosen


def render_replies(
    messages: Sequence[ChatMessage], chosen: Sequence[int], render: Render, special: re.Pattern[str]
) -> list[RenderedReplies]:
    """Return the texts in which the replies ``chosen`` are trained on, as the model will meet them.

    A reply is what ``render`` adds to the beginning of a reply, which it writes for the messages before; so a reply has
    exactly the context that it will have when the model writes it. As long as the text so far is the beginning of the
    next one, all replies are in one text. A template that renders earlier replies otherwise than the last one, as some
    do without their reasoning, needs several texts, each with the replies that it has left as they were. Messages after
    the last of ``chosen`` are left out. A reply ends with its last token of ``special``, if only white space follows.

    Raises ``DataError`` with the differing text if the reply is no continuation, or if the template leaves out a part
    of it.
    """
    found: list[RenderedReplies] = []
    current = RenderedReplies("", (), is_ended=False)
    for number in chosen:
        prompt = render(messages[:number], add_generation_prompt=True)
        whole = render(messages[: number + 1])
        if not whole.startswith(prompt):
            raise DataError(_difference(prompt, whole, number))
        _check_shown(messages[number], whole[len(prompt) :], number)
        if current.spans and (shortened := _continued(current, prompt, special)) is not None:
            earlier = shortened.spans
        else:
            earlier = ()
            found += [current] if current.spans else []
        end, is_ended = _end_of(whole, len(prompt), special)
        current = RenderedReplies(whole, [*earlier, (len(prompt), end)], is_ended)
    return [*found, current]


def _continued(current: RenderedReplies, prompt: str, special: re.Pattern[str]) -> RenderedReplies | None:
    """Return ``current`` up to where ``prompt`` continues it; None if the template has changed one of its replies.

    Some templates put another token of ``special`` after the last reply of all.
    """
    if prompt.startswith(current.text):
        return current
    common = _common_length(current.text, prompt)
    (start, _), text = current.spans[-1], current.text
    is_whole = not special.sub("", text[common:]).strip()
    end, is_ended = _end_of(text[:common], start, special)
    if not (is_whole and is_ended and common > start):
        return None
    return replace(current, spans=[*current.spans[:-1], (start, end)])


def _end_of(text: str, start: int, special: re.Pattern[str]) -> tuple[int, bool]:
    """Return the end of the reply from ``start`` on, and whether a token of ``special`` ends it."""
    last = None
    for last in special.finditer(text, start):  # noqa: B007  the last one is used
        pass
    if last is None or text[last.end() :].strip():
        return len(text), False
    return last.end(), True


def _check_shown(message: ChatMessage, rendered: str, number: int) -> None:
    """Raise ``DataError`` if ``rendered``, a reply, lacks a part of ``message``."""
    text = _squeezed(rendered)
    if message.reasoning and _squeezed(message.reasoning) not in text:
        msg = (
            f"has reasoning in message {number} that the chat template leaves out: set data.chat.reasoning=drop to "
            "train without it"
        )
        raise DataError(msg)
    if message.tool_calls and any(call.name not in rendered for call in message.tool_calls):
        msg = f"calls a tool in message {number}, which the chat template leaves out: use a template that takes tools"
        raise DataError(msg)
    # a template may move the reasoning that is part of a text
    if _squeezed(message.text.rpartition(_END_OF_REASONING)[2]) not in text:
        why = " beside the call of a tool" if message.tool_calls else ""
        msg = (
            f"has a text in message {number} that the chat template leaves out{why}: repair the record or the template"
        )
        raise DataError(msg)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _difference(prompt: str, whole: str, number: int) -> str:
    common = _common_length(prompt, whole)
    begin = max(0, common - _SHOWN // 3)
    asked, rendered = (json.dumps(text[begin : common + _SHOWN], ensure_ascii=False) for text in (prompt, whole))
    return (
        f"cannot be trained on, as the chat template renders message {number} otherwise than it asks the model for it: "
        f"it asks with {asked}, but the reply follows {rendered}; use a template that renders both alike"
    )


def _common_length(one: str, other: str) -> int:
    length = min(len(one), len(other))
    return next((place for place in range(length) if one[place] != other[place]), length)
