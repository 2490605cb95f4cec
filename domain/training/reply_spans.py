"""The replies in a rendered conversation: the part of the text that a model is trained to write."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.domain.training.conversation_record import Conversation

TrainOn = Literal["all_assistant", "last_assistant"]

_SHOWN = 60
_LONGEST_SPECIAL = 128  # characters
_THINK = "<think>"


@dataclass(frozen=True, slots=True)
class ReplyMarks:
    """What a chat template marks replies with: its ``special`` tokens, and those that stand for an end.

    A template without a token that ends a reply leaves it to the mark of the next role, which is ``after_text`` behind
    the text of a reply and ``after_call`` behind the call of a tool. Both are empty if the template has such a token.
    """

    special: re.Pattern[str]
    after_text: str = ""
    after_call: str = ""


@dataclass(frozen=True, slots=True)
class RenderedReplies:
    """The text of a conversation, or of its beginning, and the ``spans`` in it that are replies to train on.

    A span is the position of its first character and that after its last one; spans are in order and do not overlap.
    ``is_ended`` says whether a special token ends the last reply.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    is_ended: bool


def without_reasoning(conversation: Conversation) -> Conversation:
    """Return ``conversation`` without the reasoning of its replies, be it a field or a ``<think>`` before the text."""
    messages = [
        replace(each, reasoning=None, text=INLINE_REASONING.sub("", each.text, count=1))
        if each.is_reply and reasoning_of(each) is not None
        else each
        for each in conversation.messages
    ]
    return replace(conversation, messages=tuple(messages))


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
    conversation: Conversation,
    chosen: Sequence[int],
    render: Render,
    marks: ReplyMarks,
    *,
    checks_prompts: bool = True,
) -> list[RenderedReplies]:
    """Return the texts in which the replies ``chosen`` are trained on, as the model will meet them.

    A reply is what ``render`` adds to the beginning of a reply, which it writes for the messages before; so a reply has
    exactly the context that it will have when the model writes it. As long as the text so far is the beginning of the
    next one, all replies are in one text. A template that renders earlier replies otherwise than the last one, as some
    do without their reasoning, needs several texts, each with the replies that it has left as they were. Messages after
    the last of ``chosen`` are left out. A reply ends with its last special token, if only white space follows, or with
    the mark of the next role.

    Raises ``DataError`` with the differing text if the reply is no continuation, or if the template leaves out a part
    of it or, with ``checks_prompts``, of the messages before.
    """
    messages, found, numbers = conversation.messages, list[RenderedReplies](), list[list[int]]()
    current = RenderedReplies("", (), is_ended=False)
    for number in chosen:
        text, start = _reply_in(messages, number, render, marks.special)
        check_reply(messages[number], text[start:], number)
        if current.spans and (shortened := _continued(current, text[:start], marks)) is not None:
            earlier = shortened.spans
            numbers[-1].append(number)
        else:
            earlier = ()
            found += [current] if current.spans else []
            numbers.append([number])
        end, is_ended = _end_of(text, start, marks)
        current = RenderedReplies(text, [*earlier, (start, end)], is_ended)
    found.append(current)
    for some in numbers if checks_prompts else ():
        check_prompt(conversation, some, render)
    return [_ended(each, messages, some[-1], marks) for each, some in zip(found, numbers, strict=True)]


def _reply_in(
    messages: Sequence[ChatMessage], number: int, render: Render, special: re.Pattern[str]
) -> tuple[str, int]:
    """Return the text that ends with the reply ``number``, and where in it the reply begins.

    If the template changes the messages before once the reply is there, the text has them as the template asks with.
    """
    message, asked = messages[number], list[tuple[str, str]]()
    for reasons in (True, False)[: 2 if reasoning_of(message) is None else 1]:
        whole = render(messages[: number + 1], reasons=reasons)
        if number:
            prompt = render(messages[:number], add_generation_prompt=True, reasons=reasons)
        else:
            prompt, whole = _opening(message, whole, render, special, reasons=reasons)
        if whole.startswith(prompt):
            return whole, len(prompt)
        asked.append((prompt, whole))
    prompt, whole = asked[0]
    reply = _behind_changed(prompt, whole, messages[:number])
    if reply is None and (reply := _behind_thought(prompt, whole, message)) is None:
        raise DataError(_difference(prompt, whole, number))
    return prompt + reply, len(prompt)


def _opening(
    message: ChatMessage, whole: str, render: Render, special: re.Pattern[str], *, reasons: bool
) -> tuple[str, str]:
    """Return the text that asks for a conversation's first message, a reply, and ``whole``, which ends with the reply.

    It is what the template asks with after any other message; a template without such a text begins with the reply.
    """
    question = [ChatMessage(MessageRole.USER, "a")]
    before = render(question, reasons=reasons)
    asked = render(question, add_generation_prompt=True, reasons=reasons)
    beginning = asked[_within(asked, _common_length(before, asked), special, before) :]
    if not beginning.strip():  # it may follow every message
        both = asked + whole
        end = special.search(both, _repeated(both, len(asked), special))
        beginning = "" if end is None else both[end.end() :]
        whole = whole.removesuffix(beginning)
    header = beginning.partition(_THINK)[0].rstrip()
    if header and (place := whole.find(header)) >= 0:
        return whole[:place] + beginning, whole
    place = whole.rfind(message.text.strip())
    if header or not message.text.strip() or place < 0:
        msg = (
            "begins with a reply, and the chat template has no text that asks for one: begin with a message of the "
            "system or the user, or leave the record out"
        )
        raise DataError(msg)
    return whole[:place].rstrip(), whole


def _behind_changed(prompt: str, whole: str, before: Sequence[ChatMessage]) -> str | None:
    """Return the reply in ``whole`` if that leaves out or moves a part of ``prompt`` ahead of the last message."""
    said = before[-1].text.strip() if before else ""
    places = [prompt.rfind(form) for form in (said, json.dumps(said, ensure_ascii=False)[1:-1])]
    if not said or max(places) < 0:
        return None
    common = _common_length(prompt, whole)
    end, rest, found = prompt[max(places) :], whole[common:], None
    place = rest.find(end)
    while place >= 0:
        if prompt.endswith(rest[: place + len(end)]):
            found = rest[place + len(end) :]
        place = rest.find(end, place + 1)
    return found


def _behind_thought(prompt: str, whole: str, message: ChatMessage) -> str | None:
    """Return the reply with its reasoning if ``prompt`` begins a thought that the template does not write in a reply.

    A reply without reasoning ends the thought at once.
    """
    before, mark, space = prompt.rpartition(_THINK)
    if not mark or space.strip() or not whole.startswith(before):
        return None
    reply = INLINE_REASONING.sub("", whole[len(before) :], count=1)
    thought = (reasoning_of(message) or "").strip()
    return f"{'' if space else chr(10)}{thought}\n</think>\n\n{reply.lstrip()}"


def _continued(current: RenderedReplies, prompt: str, marks: ReplyMarks) -> RenderedReplies | None:
    """Return ``current`` up to where ``prompt`` continues it; None if the template has changed one of its replies.

    Some templates put another special token after the last reply of all.
    """
    (start, end), text = current.spans[-1], current.text
    common = _within(text, _common_length(text, prompt), marks.special, prompt)
    if not current.is_ended and marks.after_text and common == len(text):
        return replace(current, spans=[*current.spans[:-1], (start, _end_by_role(prompt, end, marks))])
    if common >= (end if current.is_ended else len(text)):
        return current
    is_whole = not marks.special.sub("", text[common:end]).strip()
    end, is_ended = _end_of(text[:common], start, marks)
    if not (is_whole and is_ended and common > start):
        return None
    return replace(current, spans=[*current.spans[:-1], (start, end)])


def _end_of(text: str, start: int, marks: ReplyMarks) -> tuple[int, bool]:
    """Return the end of the reply from ``start`` on, and whether a special token ends it.

    Some templates put the beginning of another reply behind each reply.
    """
    if marks.after_text:
        return len(text), False
    again = next(marks.special.finditer(text, _repeated(text, start, marks.special)), None)
    if again is not None:
        return again.end(), True
    last = None
    for last in marks.special.finditer(text, start):  # noqa: B007  the last one is used
        pass
    if last is None or text[last.end() :].strip():
        return len(text), False
    return last.end(), True


def _repeated(text: str, start: int, special: re.Pattern[str]) -> int:
    """Return where the end of ``text`` begins that is also the end of the text before ``start``."""
    before, after = text[:start][::-1], text[start:][::-1]
    place = len(text) - _common_length(before, after)
    for token in special.finditer(text, max(start, place - _LONGEST_SPECIAL)):
        if token.start() < place < token.end():
            return token.end()
    return place


def _end_by_role(text: str, end: int, marks: ReplyMarks) -> int:
    """Return the end of the mark of the user or of a tool that follows at ``end``, else ``end``."""
    space = len(text[end:]) - len(text[end:].lstrip())
    match = marks.special.match(text, end + space)
    return match.end() if match is not None and match[0] in (marks.after_text, marks.after_call) else end


def _ended(
    rendered: RenderedReplies, messages: Sequence[ChatMessage], number: int, marks: ReplyMarks
) -> RenderedReplies:
    """Return ``rendered``, whose last reply is ``number``, with the mark of the next role if that is its end."""
    follows = messages[number + 1].role if number + 1 < len(messages) else None
    is_call = bool(messages[number].tool_calls) if follows is None else follows is MessageRole.TOOL
    mark = marks.after_call if is_call else marks.after_text
    if rendered.is_ended or not mark:
        return rendered
    text, (start, _) = rendered.text + mark, rendered.spans[-1]
    return RenderedReplies(text, [*rendered.spans[:-1], (start, len(text))], is_ended=True)


def _within(text: str, place: int, special: re.Pattern[str], other: str) -> int:
    """Return ``place``, or the beginning of the special token of ``text`` or ``other`` that it lies in."""
    begin = max(0, place - _LONGEST_SPECIAL)
    tokens = [token for each in (text, other) for token in special.finditer(each, begin)]
    return min([place, *(token.start() for token in tokens if token.start() < place < token.end())])


def _difference(prompt: str, whole: str, number: int) -> str:
    common = _common_length(prompt, whole)
    begin = max(0, common - _SHOWN // 3)
    asked, rendered = (json.dumps(text[begin : common + _SHOWN], ensure_ascii=False) for text in (prompt, whole))
    return (
        f"cannot be trained on, as the chat template renders message {number} otherwise than it asks the model for it: "
        f"it asks with {asked}, but the reply follows {rendered}; use a template that renders both alike"
    )


def _common_length(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


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
    entry = dict(tool)
    if isinstance(inner, dict):
        return entry | {"function": _marked_tool(inner, place)}
    marked = {name: f"{tool[name]}{_mark(place)}" for name in _TOOL_PARTS if isinstance(tool.get(name), str)}
    return entry | marked


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
