"""The evaluation section: held-out text, named sets, generated samples and benchmark suites."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from holdfast.configs.sections.base import Flag, Folder, Natural, Number, Positive, Section, Seed, Text
from holdfast.configs.sections.data import PythonLibraryDataSettings
from holdfast.configs.sections.sources import SEVERAL, EvaluationSet

_SUITE = re.compile(r"\w[\w.+-]*")  # of the harness, and no path


class SamplingSettings(Section):
    """Sampling of the texts that continue ``evaluation.prompts``."""

    max_new_tokens: Positive = Field(default=64, description="Maximum number of new tokens of each text.")
    temperature: Number = Field(
        default=0.8, ge=0, description="Divisor of the logits before sampling; 0 always takes the likeliest token."
    )
    top_k: Natural = Field(default=50, description="Number of likeliest tokens to sample from; 0 means all.")
    seed: Seed = Field(default=0, description="Seed of the first prompt; each later prompt has the next number.")


class HarnessSettings(Section):
    """Runs of the suites of lm-evaluation-harness, in a process beside training."""

    every: Natural = Field(
        default=0,
        description="Steps between two evaluations by suites, each on the first checkpoint that is saved then or "
        "later; 0 evaluates only the last checkpoint of the run.",
    )
    tasks: Folder | None = Field(
        default=None,
        description="Folder with tasks of your own, as YAML files of the harness; they may contain code. null means "
        "none.",
    )
    limit: Positive | None = Field(default=None, description="Maximum number of examples of each task; null means all.")
    few_shot: Natural | None = Field(
        default=None, description="Number of solved examples in each prompt; null means that of each task."
    )
    batch_size: Positive = Field(default=8, description="Sequences per forward pass.")
    device: Text = Field(default="cpu", description="Device of the evaluated model, such as cpu or cuda:1.")
    timeout_seconds: Annotated[Number, Field(gt=0)] = Field(
        default=3600.0, description="Seconds after which an evaluation is ended as failed."
    )


class EvaluationSettings(Section):
    """Evaluations: frequency and size, named sets of text, generated samples and benchmark suites."""

    every: Natural = Field(
        default=100,
        description="Steps between two evaluations; 0 evaluates only at the end of the budget, and before the first "
        "step if at_start is set.",
    )
    at_start: Flag = Field(default=True, description="Whether to evaluate before the first step of a new run.")
    max_tokens: Positive = Field(
        default=65536, description="Maximum number of held-out tokens in an evaluation, and of the tokens of each set."
    )
    batch_size: Positive = Field(default=16, description="Sequences per forward pass of an evaluation.")
    sets: dict[Text, EvaluationSet] | None = Field(
        default=None,
        description="Sets of documents that are evaluated and never trained on, under names of your choice, each with "
        "its path and options as in data: files, or with kind: huggingface a split of a dataset; null means none.",
    )
    prompts: Annotated[tuple[Text, ...], SEVERAL] = Field(
        default=(), description="Texts that the model continues at each evaluation: a list."
    )
    prompts_file: Folder | None = Field(
        default=None, description="File of UTF-8 text with further prompts, one on each line; null means none."
    )
    sampling: SamplingSettings = Field(
        default_factory=SamplingSettings, description="Sampling of the texts that continue evaluation.prompts."
    )
    suites: Annotated[tuple[Text, ...], SEVERAL] = Field(
        default=(), description="Tasks and groups of lm-evaluation-harness to evaluate checkpoints by: a list of names."
    )
    harness: HarnessSettings = Field(
        default_factory=HarnessSettings, description="Runs of the suites, in a process beside training."
    )

    @field_validator("suites")
    @classmethod
    def _are_names(cls, suites: tuple[str, ...]) -> tuple[str, ...]:
        if strange := [name for name in suites if not _SUITE.fullmatch(name)]:
            msg = (
                f"names {strange[0]!r}, which is no name of a task: put tasks of your own into evaluation.harness.tasks"
            )
            raise ValueError(msg)
        return tuple(dict.fromkeys(suites))

    @model_validator(mode="after")
    def _have_plain_names(self) -> Self:
        for name in self.sets or ():
            if name != name.strip() or not name.isprintable():
                msg = f"sets have the name {name!r}: use printable characters, without spaces around them"
                raise ValueError(msg)
        return self


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
