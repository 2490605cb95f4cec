"""The text that a model generates at the end of its run."""

from __future__ import annotations

from pydantic import Field

from holdfast.configs.sections.base import Natural, Number, Positive, Section
from holdfast.configs.sections.data import PythonLibraryDataSettings


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


def default_prompt(data_kind: str, task: str) -> str:
    """Return the prompt of a model that was trained for ``task`` on data of ``data_kind``."""
    if data_kind == PythonLibraryDataSettings.model_fields["kind"].default:
        return "def"
    return "Hello" if task in ("chat", "preference") else ""
