"""A conversation with a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
