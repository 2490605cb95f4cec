"""Fine-tuning on conversations."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from holdfast.configs.sections.base import Section, Text


def _day(value: str) -> str:
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError as error:
        msg = f"is {value!r}: write a day such as 2024-07-26"
        raise ValueError(msg) from error


Day = Annotated[str, BeforeValidator(str), AfterValidator(_day)]


class ChatSettings(Section):
    """Conversations to train on: their template, and the replies that are trained on."""

    template: Text | None = Field(
        default=None,
        description="Chat template: chatml, plain, or a file in the language of Jinja; null means that of the "
        "tokenizer. plain needs no special token but end-of-text.",
    )
    template_options: dict[str, Any] | None = Field(
        default=None, description="Variables of the chat template, such as enable_thinking: false; null gives none."
    )
    template_date: Day = Field(
        default="2024-07-26",
        description="Date that a template with the current date writes into conversations to train on, so that they "
        "are the same on each day.",
    )
    train_on: Literal["all_assistant", "last_assistant"] = Field(
        default="all_assistant",
        description="Replies to train on: all_assistant or last_assistant, only the last one of each conversation.",
    )
    reasoning: Literal["keep", "drop"] = Field(
        default="keep",
        description="Reasoning of the replies: keep trains on it, drop leaves it out, a <think> in the text included.",
    )
