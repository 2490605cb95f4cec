"""A conversation with a model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MessageRole(StrEnum):
    """The roles of the messages of a conversation, by the names that chat templates use."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """The text of one message, and its role."""

    role: MessageRole
    text: str
