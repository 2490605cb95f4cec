"""Marks in records that say which replies are trained on, by the names of several programs, and unused fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

ROLE_FIELDS = ("role", "from")
CONTENT_FIELDS = ("content", "value", "text", "parts")
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_TRAINED = ("weight", "train", "training", "trainable", "loss", "train_on_turn")
_UNTRAINED = "masked"
_UNCLEAR = {
    "train_detail": "marks of parts of a reply are not supported",
    "loss_scale": "a scale of the loss is not supported",
    "mask": "it is not clear whether it marks what is trained on or what is not",
}
_MESSAGE = frozenset(
    {
        *(*ROLE_FIELDS, *CONTENT_FIELDS, *REASONING_FIELDS, *_TRAINED, _UNTRAINED, *_UNCLEAR),
        *("tool_calls", "function_call", "name", "tool_call_id", "tools"),
    }
)
_CALL = frozenset({"type", "function", "id", "index", "name", "arguments"})
_ONE_OF = (ROLE_FIELDS, CONTENT_FIELDS, REASONING_FIELDS)
_REPLIES = ("assistant", "gpt", "model", "function_call")
_LATER = ("system_prompt", "functions", "chat_template_kwargs", "loss_mask", "mask")  # fields of a record
_NOTHING: tuple[object, ...] = (None, "", [], {})


def is_trained(message: Mapping[str, object], number: int, *, is_reply: bool) -> bool:
    """Return whether the message is trained on if it is a reply; it is, unless a mark says no.

    Raises ``DataError`` for a mark that is not understood, and for one that asks to train on a message of another role.
    """
    for name, reason in _UNCLEAR.items():
        if message.get(name) is not None:
            msg = f"message {number} has the field {name!r}, and {reason}: write weight, 0 for a reply not trained on"
            raise DataError(msg)
    said = {name: value for name in (*_TRAINED, _UNTRAINED) if (value := message.get(name)) is not None}
    for name, value in said.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            msg = f"the {name} of message {number} is {value!r}: it is 1 or true, or 0 or false if it is not trained on"
            raise DataError(msg)
    marks = {name: bool(value) is not (name == _UNTRAINED) for name, value in said.items()}
    if len(set(marks.values())) > 1:
        msg = f"the fields {' and '.join(marks)} of message {number} contradict each other: repair the record"
        raise DataError(msg)
    if not is_reply and any(marks[name] for name in marks if name != "weight"):
        msg = f"message {number} is to be trained on by its field {next(iter(marks))!r}, but is no reply of the model"
        raise DataError(msg)
    return all(marks.values())


def masked_replies(record: Mapping[str, object], is_reply: Sequence[bool]) -> Sequence[bool]:
    """Return whether each message is trained on by the fields ``loss_mask`` and ``mask`` of ``record``.

    ``loss_mask`` has 1 or 0 for each message, or for each reply. ``mask`` names the role that is not trained on, which
    can be the user's alone. Raises ``DataError`` for anything else.
    """
    mask = record.get("mask")
    if mask not in _NOTHING and (not isinstance(mask, str) or mask.lower() not in ("user", "human")):
        msg = "the field 'mask' names another role than the user's: write weight 0 in replies that are not trained on"
        raise DataError(msg)
    given = record.get("loss_mask")
    if given in _NOTHING:
        return [True] * len(is_reply)
    wanted = (len(is_reply), sum(is_reply))
    if not isinstance(given, list) or len(given) not in wanted or any(each not in (0, 1) for each in given):
        msg = "the field 'loss_mask' is no list with 1 or 0 for each message, or for each reply: repair the record"
        raise DataError(msg)
    if len(given) != len(is_reply):
        replies = iter(given)
        return [bool(next(replies)) if each else True for each in is_reply]
    if any(value and not each for value, each in zip(given, is_reply, strict=True)):
        msg = "the field 'loss_mask' asks to train on a message that is no reply of the model: repair the record"
        raise DataError(msg)
    return [bool(value) for value in given]


def unused_fields(record: Mapping[str, object], fields: Collection[str], messages_fields: Collection[str]) -> list[str]:
    """Return the fields of ``record`` and of its messages and calls that have no meaning, each once, in order.

    ``fields`` are those of a record that have one, and ``messages_fields`` hold messages. Empty fields do not count.
    """
    unused = [name for name, value in record.items() if name not in fields and value not in _NOTHING]
    for field in messages_fields:
        value = _parsed(record.get(field))
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, dict):
                unused += [f"{field}[].{name}" for name in _unused_in(message)]
    return list(dict.fromkeys(unused))


def as_read_before(record: Mapping[str, object], messages_fields: Collection[str]) -> dict[str, object]:
    """Return what the first rules for records read of ``record``, for runs that were begun by them.

    They knew the mark ``weight`` alone, and took a message without a content for an empty one. ``messages_fields`` hold
    messages.
    """
    kept = {name: value for name, value in record.items() if name not in _LATER}
    if not isinstance(kept.get("system"), str):
        kept.pop("system", None)
    for field in messages_fields:
        value = _parsed(kept.get(field))
        if isinstance(value, list):
            kept[field] = [_message_before(each) for each in value]
        elif isinstance(value, dict):
            kept[field] = _message_before(value)
    return kept


def _message_before(message: object) -> object:
    if not isinstance(message, dict):
        return message
    is_reply = message.get("role", message.get("from")) in _REPLIES
    names = ("role", "from", "name", "tool_call_id", "weight", *((*REASONING_FIELDS, "tool_calls") if is_reply else ()))
    marks = {name: message[name] for name in names if name in message}
    said = message.get("content", message.get("value"))
    return marks | {"content": "" if said is None else said}


def _parsed(value: object) -> object:
    """Return the messages that ``value`` holds as JSON, as the cells of some tables do; any other value as it is."""
    if not isinstance(value, str) or not value.startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _unused_in(message: Mapping[str, object]) -> Iterator[str]:
    yield from (name for name, value in message.items() if name not in _MESSAGE and value not in _NOTHING)
    for names in _ONE_OF:
        values = {name: message[name] for name in names if message.get(name) not in _NOTHING}
        used = next(iter(values.values()), None)
        yield from (name for name, value in values.items() if value != used)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            inner = call.get("function")
            parts = [("", call), ("function.", inner if isinstance(inner, dict) else {})]
            yield from (f"tool_calls[].{at}{name}" for at, part in parts for name in part if name not in _CALL)
