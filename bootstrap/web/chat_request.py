"""The request of the chat page for one reply, checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.operations.chat_models import ChatRequest
from holdfast.domain.training.conversation import ChatMessage, MessageRole
from holdfast.domain.training.text_generation import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LARGEST = 1 << 20
"""The largest body of a request in bytes."""
_MEMBERS = {"model", "text", "messages", "sampling"}


class RequestInvalid(Exception):
    """A request that no page of ours sends; its message is a sentence for a person."""


@dataclass(frozen=True, slots=True)
class NumberedRequest:
    """The number of a model, from 0, and the request to it."""

    model: int
    request: ChatRequest


def request_from(body: bytes, num_models: int) -> NumberedRequest:
    """Return the request in ``body``, JSON in UTF-8; raises ``RequestInvalid``.

    ``model`` is the number of one of ``num_models``; either ``text`` is a string, or ``messages`` is a list of objects
    with ``role`` and ``text``; ``sampling`` has members of ``Sampling``, each of which may be left out.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        msg = "the request is not JSON in UTF-8"
        raise RequestInvalid(msg) from error
    if not isinstance(given, dict) or not given.keys() <= _MEMBERS or ("text" in given) is ("messages" in given):
        msg = "the request needs a model, a sampling, and either a text or messages"
        raise RequestInvalid(msg)
    model = _whole(given, "model", 0, num_models - 1)
    sampling = _sampling(given.get("sampling", {}))
    if "text" in given:
        return NumberedRequest(model, ChatRequest(sampling, text=_text(given["text"])))
    return NumberedRequest(model, ChatRequest(sampling, messages=_messages(given["messages"])))


def _messages(given: Any) -> Sequence[ChatMessage]:
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        msg = "messages is a list of objects with role and text, and not empty"
        raise RequestInvalid(msg)
    roles = [MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT]
    if strange := [each.get("role") for each in given if each.get("role") not in roles]:
        msg = f"the role of a message is {', '.join(roles)}, not {strange[0]!r:.40}"
        raise RequestInvalid(msg)
    return [ChatMessage(MessageRole(each["role"]), _text(each.get("text"))) for each in given]


def _sampling(given: Any) -> Sampling:
    usual = Sampling()
    known = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    if not isinstance(given, dict) or not given.keys() <= set(known):
        msg = f"sampling has the members {', '.join(known)}, and no other"
        raise RequestInvalid(msg)
    return Sampling(
        max_new_tokens=_whole(given, "max_new_tokens", 1, 2**31 - 1, usual.max_new_tokens),
        temperature=_number(given, "temperature", 0.0, 100.0, usual.temperature),
        top_k=_whole(given, "top_k", 0, 2**31 - 1, usual.top_k),
        top_p=_number(given, "top_p", 1e-6, 1.0, usual.top_p),
        seed=_whole(given, "seed", 0, 2**31 - 1, usual.seed),
    )


def _whole(given: Mapping[str, Any], name: str, least: int, most: int, usual: int | None = None) -> int:
    value = given.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        msg = f"{name} is a whole number from {least} to {most}"
        raise RequestInvalid(msg)
    return value


def _number(given: Mapping[str, Any], name: str, least: float, most: float, usual: float) -> float:
    value = given.get(name, usual)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        msg = f"{name} is a number from {least:g} to {most:g}"
        raise RequestInvalid(msg)
    assert math.isfinite(value)  # NaN lies in no range
    return float(value)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        msg = "a text is a string"
        raise RequestInvalid(msg)
    return given.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text
