"""A chat template, and the checks that it leaves out no part of a conversation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.domain.training.conversation import ChatMessage, Conversation

INLINE_REASONING = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
"""A thought at the beginning of the text of a reply."""
_END_OF_REASONING = "</think>"
_THOUGHT_MARK = re.compile(r"</?think>")
_TOOL_PARTS = ("name", "description")
_SCHEMA = frozenset({"type", "function", "parameters", "strict"})  # of a tool; some templates write them in other words


class Render(Protocol):
    """A chat template."""

    def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = False,
        reasons: bool = True,
    ) -> str:
        """Return the text of ``messages``, and of the beginning of a reply if ``add_generation_prompt``.

        Without ``reasons`` a template that can ask for replies with and without reasoning asks for one without.
        """
        ...


def reasoning_of(message: ChatMessage) -> str | None:
    """Return what the model thinks before the text of a reply, be it a field or a part of the text."""
    inline = INLINE_REASONING.match(message.text)
    return message.reasoning or (inline[1] if inline else None)


def check_reply(message: ChatMessage, rendered: str, number: int) -> None:
    """Raise ``DataError`` if ``rendered``, the text of a reply, lacks a part of ``message``."""
    text = _squeezed(rendered)
    if not _is_in(reasoning_of(message) or "", text):
        msg = (
            f"has reasoning in message {number} that the chat template leaves out: set data.chat.reasoning=drop to "
            "train without it"
        )
        raise DataError(msg)
    for call in message.tool_calls:
        if call.name not in rendered or not all(_is_in(each, text) for each in _texts(call.arguments)):
            msg = (
                f"calls a tool in message {number}, which the chat template leaves out: use a template that takes tools"
            )
            raise DataError(msg)
    # a template may move the reasoning that is part of a text
    if not all(_is_in(part, text) for part in _THOUGHT_MARK.split(message.text)):
        why = " beside the call of a tool" if message.tool_calls else ""
        msg = (
            f"has a text in message {number} that the chat template leaves out{why}: repair the record or the template"
        )
        raise DataError(msg)


def check_prompt(conversation: Conversation, numbers: Sequence[int], render: Render) -> None:
    """Raise ``DataError`` if ``render`` leaves out a part of the messages before the replies ``numbers``, or a tool.

    Each part is rendered once with a mark of its own, as a short text may well be a part of another one. Earlier
    reasoning may be left out, as many templates do when the model is asked again.
    """
    number = numbers[-1]
    messages = [_marked(each, place) for place, each in enumerate(conversation.messages[:number])]
    tools = [_marked_tool(tool, place) for place, tool in enumerate(conversation.tools)]
    if not any(_prompt_parts(each) for each in messages) and not tools:
        return
    asked = messages or conversation.messages[: number + 1]
    text = _squeezed(render(asked, tools=tools, add_generation_prompt=True))
    for place, message in enumerate(messages):
        after = [text.find(_mark(each)) for each in numbers[:-1] if each > place]
        for what, part in _prompt_parts(message):
            if not _is_in(part, text) or any(-1 < each < text.find(_mark(place)) for each in after):
                msg = (
                    f"has a {what} in message {place}, of the role {message.role}, that the chat template leaves out: "
                    "take it out of the record, or use a template that writes it"
                )
                raise DataError(msg)
    for path, part in (part for tool in tools for part in _tool_parts(tool)):
        if not _is_in(part, text):
            msg = (
                f"describes a tool whose {path} the chat template leaves out: take it out of the field 'tools', or "
                "use a template that writes it"
            )
            raise DataError(msg)


def _prompt_parts(message: ChatMessage) -> list[tuple[str, str]]:
    """Return the parts of a message before a reply that the template must write, each with what it is.

    Replies that are trained on are checked where they are.
    """
    if message.is_reply and message.is_trained:
        return []
    parts = [("text", message.text.rpartition(_END_OF_REASONING)[2] if message.is_reply else message.text)]
    if message.name and message.role != "tool":
        parts.append(("name", message.name))
    return [part for part in parts if part[1].strip()]


def _marked(message: ChatMessage, place: int) -> ChatMessage:
    return replace(message, text=f"{message.text} {_mark(place)}" if message.text.strip() else message.text)


def _mark(place: int) -> str:
    return f"0q{place}q0"


def _marked_tool(tool: Mapping[str, object], place: int) -> Mapping[str, object]:
    inner = tool.get("function")
    found = dict(tool)
    if isinstance(inner, dict):
        return found | {"function": _marked_tool(inner, place)}
    marked = {name: f"{tool[name]}{_mark(place)}" for name in _TOOL_PARTS if isinstance(tool.get(name), str)}
    return found | marked


def _tool_parts(tool: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield the parts of ``tool`` that a template must write, each with its name."""
    for name, value in tool.items():
        if name == "function" and isinstance(value, dict):
            yield from _tool_parts(value)
        elif name in _TOOL_PARTS and isinstance(value, str):
            yield name, value
        elif name not in _SCHEMA:
            yield from ((name, text) for text in (name, *_texts(value)))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _is_in(part: str, squeezed: str) -> bool:
    """Return whether ``part`` is in a text without white space, as it is or with the escapes of JSON."""
    forms: Sequence[str] = (part, json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1])
    return any(_squeezed(form) in squeezed for form in forms)


def _squeezed(text: str) -> str:
    return "".join(text.split())
