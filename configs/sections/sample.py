"""The text that a model generates at the end of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from holdfast.configs.sections.base import Natural, Number, Positive, Section
from holdfast.configs.sections.data import PythonLibraryDataSettings

if TYPE_CHECKING:
    from holdfast.configs.sections.data import DataSettings


class SampleSettings(Section):
    """Text that the model generates at the end of a run."""

    prompt: str = Field(
        default="",
        description="Text that the sample continues, or the message it replies to; if it is empty, the model starts a "
        "document. Without this setting it is `def` on the Python standard library, `Hello` in training on "
        "conversations, and empty on other data.",
    )
    max_new_tokens: Positive = Field(default=96, description="Maximum number of new tokens.")
    temperature: Number = Field(
        default=0.8, ge=0, description="Divisor of the logits before sampling; 0 always takes the likeliest token."
    )
    top_k: Natural = Field(default=50, description="Number of likeliest tokens to sample from; 0 means all.")


def with_default_prompt(sample: SampleSettings, data: DataSettings) -> SampleSettings:
    """Return ``sample`` with a prompt that suits ``data``, unless one was given."""
    if "prompt" in sample.model_fields_set:
        return sample
    prompt = "Hello" if data.task in ("chat", "preference") else ""
    return sample.model_copy(update={"prompt": "def" if isinstance(data, PythonLibraryDataSettings) else prompt})
