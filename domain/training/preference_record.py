"""Records of preferences: two replies to the same messages, of which one is preferred."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import (
    MESSAGE_FIELDS,
    SHARED_FIELDS,
    conversation_from,
    conversation_of,
    conversation_text,
)
from holdfast.domain.training.record_marks import unused_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.domain.training.conversation_record import Conversation

_SIDES = ("chosen", "rejected")
_QUESTIONS = ("prompt", "question")
PREFERENCE_FIELDS = (*_SIDES, *_QUESTIONS, "instruction", "input", "history", *MESSAGE_FIELDS, *SHARED_FIELDS)
"""All fields of a record that a preference is made of."""
_MISSING: tuple[object, ...] = (None, "", [])


@dataclass(frozen=True, slots=True)
class Preference:
    """Two conversations with the same messages before their last replies, of which the ``chosen`` one is preferred."""

    chosen: Conversation
    rejected: Conversation


def preference_of(record: Mapping[str, object], messages_field: str | None = None) -> Preference:
    """Return the preference in ``record``.

    ``chosen`` and ``rejected`` are whole conversations, or replies to the messages of another field: a ``prompt`` or
    ``question``, an ``instruction`` with its ``input``, or the messages in ``messages_field`` or one of
    ``MESSAGE_FIELDS``. A reply is a text, a message, or a list of messages that begins with a reply. The fields
    ``system`` and ``tools`` belong to both conversations. Raises ``DataError`` with a sentence that names the field.
    """
    chosen, rejected = (_side(record, name, messages_field) for name in _SIDES)
    for name, conversation in zip(_SIDES, (chosen, rejected), strict=True):
        if not conversation.messages[-1].is_reply:
            msg = f"the last message of the field {name!r} is no reply of the assistant: repair the record"
            raise DataError(msg)
    _check_comparable(chosen, rejected)
    return Preference(chosen, rejected)


def unused_in_preference(record: Mapping[str, object], messages_field: str | None = None) -> list[str]:
    """Return the fields of ``record``, a preference, and of its messages that ``preference_of`` does not read.

    Empty fields do not count.
    """
    own = () if messages_field is None else (messages_field,)
    return unused_fields(record, (*own, *PREFERENCE_FIELDS), (*own, *MESSAGE_FIELDS, *_SIDES, *_QUESTIONS))


def preference_text(preference: Preference) -> str:
    """Return ``preference`` as JSON, which ``preference_from`` reads."""
    sides = (preference.chosen, preference.rejected)
    texts = {name: json.loads(conversation_text(each)) for name, each in zip(_SIDES, sides, strict=True)}
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":"))


def preference_from(text: str) -> Preference:
    """Return the preference that ``preference_text`` wrote; raises ``DataError`` for another text."""
    try:
        record = json.loads(text)
        chosen, rejected = (json.dumps(record[name], ensure_ascii=False) for name in _SIDES)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        msg = "it is not the text of a preference: use a data source that knows data.task"
        raise DataError(msg) from error
    return Preference(conversation_from(chosen), conversation_from(rejected))


def _check_comparable(chosen: Conversation, rejected: Conversation) -> None:
    """Raise ``DataError`` if the last messages, which are replies, are no two answers to the same messages."""
    if chosen.messages[:-1] != rejected.messages[:-1] or chosen.tools != rejected.tools:
        msg = (
            "the messages before the last reply differ between the fields 'chosen' and 'rejected', so the replies do "
            "not compare: repair the record or leave it out"
        )
        raise DataError(msg)
    if len(chosen.messages) > 1 and chosen.messages[-2].is_reply:
        msg = (
            "a reply of the assistant is the last message before 'chosen' and 'rejected', which answer nothing then: "
            "take it out of the messages, or leave the record out"
        )
        raise DataError(msg)
    if len(chosen.messages) == 1:
        msg = (
            "there is no message that the replies answer: give the record a prompt, or write 'chosen' and 'rejected' "
            "as lists of all messages"
        )
        raise DataError(msg)
    if chosen == rejected:
        msg = "the fields 'chosen' and 'rejected' are equal, so neither is preferred: leave the record out"
        raise DataError(msg)


def _side(record: Mapping[str, object], name: str, messages_field: str | None) -> Conversation:
    """Return the conversation that ends with the reply in the field ``name``."""
    shared = {field: record[field] for field in SHARED_FIELDS if record.get(field) not in _MISSING}
    value = record.get(name)
    if value in _MISSING:
        fault = "is missing" if value is None else "is empty"
        msg = f"the field {name!r} {fault}: a record of data.task=preference has both chosen and rejected"
        raise DataError(msg)
    turns = [value] if isinstance(value, dict) else _listed(value)
    if not isinstance(turns, str | list):
        msg = f"the field {name!r} is neither a text nor a list of messages: repair the record"
        raise DataError(msg)
    reply: str | list[object] = turns
    if isinstance(reply, list) and not _begins_with_reply(reply):
        return conversation_of({**shared, "messages": reply})
    before = next((each for each in (messages_field, *MESSAGE_FIELDS) if each and record.get(each) not in _MISSING), "")
    messages = [{"role": "assistant", "content": reply}] if isinstance(reply, str) else reply
    if before:
        return conversation_of({**shared, "messages": [*_list_in(record, before), *messages]})
    asked = next((each for each in _QUESTIONS if record.get(each) not in _MISSING), None)
    if asked is not None:
        return conversation_of({**shared, "prompt": record[asked], "completion": reply})
    if record.get("instruction") not in _MISSING and isinstance(reply, str):
        fields = {each: record.get(each) for each in ("instruction", "input", "history")}
        return conversation_of({**shared, **fields, "output": reply})
    return conversation_of({**shared, "messages": messages})


def _listed(value: object) -> object:
    """Return the messages that ``value`` holds as JSON, as the cells of some tables do; any other value as it is.

    A list of objects without roles is a text, such as the reply to a request for JSON.
    """
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return value
    is_messages = (
        isinstance(content, list) and bool(content) and all(_name_of_role(each) is not None for each in content)
    )
    return content if is_messages else value


def _list_in(record: Mapping[str, object], field: str) -> list[object]:
    value = _listed(record[field])
    if not isinstance(value, list):
        msg = f"the field {field!r} holds no list of messages: repair the record or leave it out"
        raise DataError(msg)
    return value


def _begins_with_reply(messages: list[object]) -> bool:
    return bool(messages) and _name_of_role(messages[0]) in ("assistant", "gpt", "model", "function_call")


def _name_of_role(message: object) -> object:
    """Return the role that ``message`` names, as OpenAI or ShareGPT do, None for anything else."""
    return message.get("role", message.get("from")) if isinstance(message, dict) else None
