"""Records of data sets as conversations, in the forms that are in use, and conversations as text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.domain.errors import DataError
from holdfast.domain.training.record_marks import (
    CONTENT_FIELDS,
    REASONING_FIELDS,
    is_trained,
    masked_replies,
    unused_fields,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOTHING: Mapping[str, object] = MappingProxyType({})


class MessageRole(StrEnum):
    """The roles of the messages of a conversation, by the names that chat templates use."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model: the name of a function and its arguments, which are JSON values."""

    name: str
    arguments: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """The text of one message, and its role.

    ``reasoning`` is what the model thinks before its text, and ``tool_calls`` follow the text. A result of a tool has
    the ``name`` of the tool and the ``tool_call_id`` of the call. ``is_trained`` is false for a reply that is part of
    the conversation, but no target of training.
    """

    role: MessageRole
    text: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    is_trained: bool = True

    @property
    def is_reply(self) -> bool:
        """Return whether the model wrote the message."""
        return self.role is MessageRole.ASSISTANT


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in their order, and the tools that the model may call, each a description in JSON Schema.

    ``options`` are variables of the chat template for this conversation.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    options: Mapping[str, object] = field(default_factory=lambda: _NOTHING)


MESSAGE_FIELDS = ("messages", "conversations")
"""The fields that hold the messages of a record, the first that is there."""
SHARED_FIELDS = ("system", "system_prompt", "tools", "functions", "chat_template_kwargs", "loss_mask", "mask")
"""The fields that belong to a conversation of any form."""
_PROMPT_FIELDS = ("prompt", "completion")
_INSTRUCTION_FIELDS = ("instruction", "input", "output", "history")
RECORD_FIELDS = (*MESSAGE_FIELDS, *_PROMPT_FIELDS, *_INSTRUCTION_FIELDS, *SHARED_FIELDS)
"""All fields of a record that a conversation is made of."""

_ROLES = {
    "system": MessageRole.SYSTEM,
    "developer": MessageRole.SYSTEM,
    "user": MessageRole.USER,
    "human": MessageRole.USER,
    "assistant": MessageRole.ASSISTANT,
    "gpt": MessageRole.ASSISTANT,
    "model": MessageRole.ASSISTANT,
    "function_call": MessageRole.ASSISTANT,
    "tool": MessageRole.TOOL,
    "function": MessageRole.TOOL,
    "observation": MessageRole.TOOL,
}
_MISSING = (None, "")  # a field that a record of a table lacks
_OF_REPLIES = (*REASONING_FIELDS, "tool_calls", "function_call")


def conversation_of(record: Mapping[str, object], messages_field: str | None = None) -> Conversation:
    """Return the conversation in ``record``.

    Its messages are in ``messages_field``, or in one of ``MESSAGE_FIELDS``, with the names of OpenAI or of ShareGPT;
    else they are a ``prompt`` with a ``completion``, or an ``instruction`` with its ``input`` and ``output``. The
    fields ``SHARED_FIELDS`` belong to all forms. Raises ``DataError`` with a sentence that names the message.
    """
    fields = _fields_of(record, messages_field)
    if fields[0] == "prompt":
        messages = _of_prompt(record)
    elif fields[0] == "instruction":
        messages = _of_instruction(record)
    else:
        messages = _messages(record.get(fields[0]), fields[0])
    kept = masked_replies(record, [each.is_reply for each in messages])
    messages = [
        replace(each, is_trained=each.is_trained and is_kept) for each, is_kept in zip(messages, kept, strict=True)
    ]
    tools = _all_tools(record, [message for field in fields for message in _listed(record.get(field))])
    return Conversation((*_system(record, messages), *messages), tools, _options(record))


def unused_in_conversation(record: Mapping[str, object], messages_field: str | None = None) -> list[str]:
    """Return the fields of ``record``, a conversation, and of its messages that ``conversation_of`` does not read.

    Empty fields do not count.
    """
    fields = _fields_of(record, messages_field)
    holders = fields if fields[0] == "prompt" else fields[:1]
    unused = unused_fields(record, (*fields, *SHARED_FIELDS), holders)
    said = [each for each in ("system", "system_prompt") if record.get(each) not in (*_MISSING, [])]
    if said:
        first = conversation_of(record, messages_field).messages[0].text
        unused += [each for each in said if _content(record[each], each)[0] != first]
    return unused


def conversation_text(conversation: Conversation) -> str:
    """Return ``conversation`` as JSON, in the form of OpenAI, which ``conversation_from`` reads."""
    record: dict[str, object] = {"messages": [_to_json(message) for message in conversation.messages]}
    if conversation.tools:
        record["tools"] = conversation.tools
    if conversation.options:
        record["chat_template_kwargs"] = conversation.options
    return _canonical(record)


def conversation_from(text: str) -> Conversation:
    """Return the conversation that ``conversation_text`` wrote; raises ``DataError`` for another text."""
    return conversation_of(_loaded(text))


def plain_text(conversation: Conversation) -> str:
    """Return what is said in ``conversation``, without roles: one paragraph for each text."""
    parts = [part for message in conversation.messages for part in (message.reasoning, message.text) if part]
    return "\n\n".join(parts)


def completion_of(record: Mapping[str, object]) -> tuple[str, str]:
    """Return the prompt and the completion in ``record``; raises ``DataError`` if one of them is no text."""
    sides = [record.get(name) for name in ("prompt", "completion")]
    if sides[0] is None and sides[1] is None and record.get("instruction") is not None:
        msg = "the record holds an instruction, which only a chat template can put into words: set data.task=chat"
        raise DataError(msg)
    for name, text in zip(("prompt", "completion"), sides, strict=True):
        if isinstance(text, list):
            msg = f"the field {name!r} holds messages, which need a chat template: set data.task=chat"
            raise DataError(msg)
        if not isinstance(text, str):
            kind = "is missing" if text is None else f"holds {_kind_of(text)}, not text"
            msg = f"the field {name!r} {kind}: a record of data.task=completion has the texts prompt and completion"
            raise DataError(msg)
    return str(sides[0]), str(sides[1])


def completion_text(prompt: str, completion: str) -> str:
    """Return a prompt and its completion as JSON, which ``completion_from`` reads."""
    return _canonical({"prompt": prompt, "completion": completion})


def completion_from(text: str) -> tuple[str, str]:
    """Return the prompt and the completion that ``completion_text`` wrote; raises ``DataError`` for another text."""
    return completion_of(_loaded(text))


def _fields_of(record: Mapping[str, object], messages_field: str | None) -> tuple[str, ...]:
    """Return the fields that hold the messages of ``record``: one, or those of a form without messages."""
    field = messages_field or next((name for name in MESSAGE_FIELDS if record.get(name) not in _MISSING), None)
    if field is not None:
        return (field,)
    if record.get("prompt") not in _MISSING:
        return _PROMPT_FIELDS
    if record.get("instruction") not in _MISSING:
        return _INSTRUCTION_FIELDS
    wanted = "messages, conversations, prompt with completion, or instruction with output"
    remedy = "set data.text_field to the field that holds its messages, or give its fields these names"
    msg = f"the record has none of the fields {wanted}: {remedy}"
    raise DataError(msg)


def _of_prompt(record: Mapping[str, object]) -> list[ChatMessage]:
    messages = _side(record, "prompt", MessageRole.USER)
    before = [replace(each, is_trained=False) for each in messages]
    return [*before, *_side(record, "completion", MessageRole.ASSISTANT)]


def _side(record: Mapping[str, object], name: str, role: MessageRole) -> list[ChatMessage]:
    value = record.get(name)
    if isinstance(value, str):
        return [ChatMessage(role, value)]
    if value is None:
        msg = f"the field {name!r} is missing: a record has both prompt and completion"
        raise DataError(msg)
    return _messages(value, name)


def _of_instruction(record: Mapping[str, object]) -> list[ChatMessage]:
    instruction, given, output = (record.get(name) for name in ("instruction", "input", "output"))
    for name, value in (("instruction", instruction), ("input", given or ""), ("output", output)):
        if not isinstance(value, str):
            kind = "is missing" if value is None else f"holds {_kind_of(value)}, not text"
            msg = f"the field {name!r} {kind}: a record has the texts instruction and output, and perhaps input"
            raise DataError(msg)
    asked = f"{instruction}\n\n{given}" if given else str(instruction)
    pair = [ChatMessage(MessageRole.USER, asked), ChatMessage(MessageRole.ASSISTANT, str(output))]
    return [*_history(record.get("history")), *pair]


def _history(value: object) -> list[ChatMessage]:
    turns = value or []
    if not isinstance(turns, list) or not all(
        isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) for text in turn) for turn in turns
    ):
        msg = "the field 'history' holds no list of pairs of texts: repair the record"
        raise DataError(msg)
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    return [ChatMessage(role, text) for turn in turns for role, text in zip(roles, turn, strict=True)]


def _messages(value: object, field: str) -> list[ChatMessage]:
    if isinstance(value, str):
        value = _parsed(value, f"the field {field!r} holds text that is not JSON: it must be a list of messages")
    if not isinstance(value, list) or not value:
        kind = (
            "no message" if value == [] else "nothing" if value is None else f"{_kind_of(value)}, no list of messages"
        )
        msg = f"the field {field!r} holds {kind}: repair the record or leave it out"
        raise DataError(msg)
    return [_message(each, number) for number, each in enumerate(value)]


def _message(value: object, number: int) -> ChatMessage:
    if not isinstance(value, dict):
        msg = f"message {number} is {_kind_of(value)}, not an object with a role and a text: repair the record"
        raise DataError(msg)
    name = value.get("role", value.get("from"))
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        msg = f"message {number} has the role {name!r}: the roles are system, user, assistant and tool"
        raise DataError(msg)
    text, thought = _content(_said(value, role, number), number)
    if role is not MessageRole.ASSISTANT and (own := next((each for each in _OF_REPLIES if value.get(each)), None)):
        msg = f"message {number} has the role {name!r} and the field {own!r}, which only a reply has: repair the record"
        raise DataError(msg)
    reasoning = next((value[each] for each in REASONING_FIELDS if value.get(each)), thought)
    calls = _calls(value.get("tool_calls"), number)
    if value.get("function_call"):
        calls = [*calls, _call(value["function_call"], number)]
    if name == "function_call":
        text, calls = "", [_call(_parsed(text, f"message {number} is no tool call: its text is not JSON"), number)]
    message = ChatMessage(
        role,
        text,
        reasoning=_optional(reasoning, "reasoning", number),
        tool_calls=tuple(calls),
        name=_optional(value.get("name"), "name", number),
        tool_call_id=_optional(value.get("tool_call_id"), "tool_call_id", number),
        is_trained=is_trained(value, number, is_reply=role is MessageRole.ASSISTANT),
    )
    if message.is_reply and not (message.text or message.reasoning or message.tool_calls):
        msg = f"message {number}, a reply, is empty: give it a text or leave the record out"
        raise DataError(msg)
    return message


def _said(message: Mapping[str, object], role: MessageRole, number: int) -> object:
    """Return the content of ``message``, by any of its names; that of a reply may be missing."""
    given = [message[name] for name in CONTENT_FIELDS if message.get(name) is not None]
    content = next((each for each in given if each not in ("", [])), given[0] if given else None)
    if content is None and role is not MessageRole.ASSISTANT:
        msg = f"message {number}, of the role {role}, has no content: give it a text, which may be empty"
        raise DataError(msg)
    return content


def _content(value: object, at: int | str) -> tuple[str, str | None]:
    """Return the text of a message, or of a field, and the reasoning in it; it may be a list of parts."""
    place = f"message {at}" if isinstance(at, int) else f"the field {at!r}"
    if value is None or isinstance(value, str):
        return value or "", None
    if not isinstance(value, list):
        msg = f"the content of {place} is {_kind_of(value)}, not text: repair the record"
        raise DataError(msg)
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    for part in value:
        kind = "text" if isinstance(part, str) else part.get("type", "text") if isinstance(part, dict) else None
        text = part if isinstance(part, str) else part.get(kind) if isinstance(part, dict) else None
        if kind not in texts or not isinstance(text, str):
            msg = f"{place} holds a part of the type {kind!r}: only text can be trained on"
            raise DataError(msg)
        texts[kind].append(text)
    return "".join(texts["text"]), "".join(texts["thinking"]) or None


def _calls(value: object, number: int) -> list[ToolCall]:
    if value is None:
        return []
    if not isinstance(value, list):
        msg = f"the tool_calls of message {number} are {_kind_of(value)}, not a list: repair the record"
        raise DataError(msg)
    return [_call(each, number) for each in value]


def _call(value: object, number: int) -> ToolCall:
    outer = value if isinstance(value, dict) else {}
    inner = outer.get("function", outer)
    inner = inner if isinstance(inner, dict) else {}
    name, arguments, identity = inner.get("name"), inner.get("arguments"), outer.get("id")
    if isinstance(arguments, str):
        arguments = _parsed(arguments or "{}", f"the arguments of a tool call in message {number} are not JSON")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        msg = f"a tool call in message {number} has no name and arguments, which are an object: repair the record"
        raise DataError(msg)
    return ToolCall(name, arguments or {}, identity if isinstance(identity, str) else None)


def _system(record: Mapping[str, object], messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return the system message in a field of ``record``, unless ``messages`` have one."""
    given = {name: record[name] for name in ("system", "system_prompt") if record.get(name) not in (*_MISSING, [])}
    texts = dict.fromkeys(_content(value, name)[0] for name, value in given.items())
    if len(texts) > 1:
        msg = "the fields 'system' and 'system_prompt' differ: leave one out"
        raise DataError(msg)
    if not texts or any(each.role is MessageRole.SYSTEM for each in messages):
        return []
    return [ChatMessage(MessageRole.SYSTEM, text) for text in texts]


def _options(record: Mapping[str, object]) -> Mapping[str, object]:
    value = record.get("chat_template_kwargs")
    if isinstance(value, str) and value:
        value = _parsed(value, "the field 'chat_template_kwargs' holds text that is not JSON")
    if value not in _MISSING and not isinstance(value, dict):
        msg = f"the field 'chat_template_kwargs' holds {_kind_of(value)}, not an object with variables of the template"
        raise DataError(msg)
    return value if isinstance(value, dict) else {}


def _listed(value: object) -> list[object]:
    """Return the messages in a field, which may be text in JSON; a text of another kind holds none."""
    if isinstance(value, str) and value.startswith("[") and '"tools"' in value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []


def _all_tools(record: Mapping[str, object], messages: Sequence[object]) -> tuple[Mapping[str, object], ...]:
    """Return the tools of ``record``, which may also be called functions or stand in the message of the system."""
    lists = [_tools(record.get("tools"), "tools")]
    functions = _tools(record.get("functions"), "functions")
    lists.append(tuple({"type": "function", "function": each} for each in functions))
    lists += [_tools(message.get("tools"), "tools") for message in messages if isinstance(message, dict)]
    given = [each for each in lists if each]
    if any(each != given[0] for each in given[1:]):
        msg = "the record describes its tools in several places, which differ: leave all but one out"
        raise DataError(msg)
    return given[0] if given else ()


def _tools(value: object, field: str) -> tuple[Mapping[str, object], ...]:
    if isinstance(value, str):
        value = _parsed(value, f"the field {field!r} holds text that is not JSON") if value.strip() else None
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        msg = f"the field {field!r} holds no list of objects, each of which describes a tool: repair the record"
        raise DataError(msg)
    return tuple(value)


def _optional(value: object, name: str, number: int) -> str | None:
    if value is not None and not isinstance(value, str):
        msg = f"the {name} of message {number} is {_kind_of(value)}, not text: repair the record"
        raise DataError(msg)
    return value or None


def _to_json(message: ChatMessage) -> dict[str, object]:
    record: dict[str, object] = {"role": str(message.role), "content": message.text}
    if message.reasoning:
        record["reasoning_content"] = message.reasoning
    if message.tool_calls:
        record["tool_calls"] = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                **({} if call.id is None else {"id": call.id}),
            }
            for call in message.tool_calls
        ]
    also = {"name": message.name, "tool_call_id": message.tool_call_id}
    record |= {name: value for name, value in also.items() if value is not None}
    if not message.is_trained:
        record["weight"] = 0
    return record


def _canonical(record: Mapping[str, object]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _loaded(text: str) -> Mapping[str, object]:
    msg = "it is not the text of a JSON object: use a data source that knows data.task"
    value = _parsed(text, msg)
    if not isinstance(value, dict):
        raise DataError(msg)
    try:
        (json.dumps(value, ensure_ascii=False) if "\\u" in text else text).encode()
    except UnicodeEncodeError as error:
        msg = "it holds half of a surrogate pair, which is no Unicode text: repair it"
        raise DataError(msg) from error
    return value


def _parsed(text: str, problem: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(problem) from error


def _kind_of(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
