"""The settings of a run, with a section for each concern and a ``kind`` for each port."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from holdfast.configs.sections.base import Flag, Natural, Number, Positive, Section
from holdfast.configs.sections.data import DataSettings, PythonLibraryDataSettings
from holdfast.configs.sections.distributed import AutoDistributedSettings, DistributedSettings
from holdfast.configs.sections.event_bus import BlinkerEventBusSettings, EventBusSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings, ModelSettings
from holdfast.configs.sections.monitors import (
    ConsoleMonitorSettings,
    HandlerSettings,
    JsonlMonitorSettings,
    MonitorSettings,
)
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings, OptimizerSettings
from holdfast.configs.sections.profile import ProfileSettings
from holdfast.configs.sections.recovery import RecoverySettings
from holdfast.configs.sections.resources import ResourceSettings
from holdfast.configs.sections.run import RunSettings
from holdfast.configs.sections.state_store import DiskStateStoreSettings, StateStoreSettings
from holdfast.configs.sections.tokenizer import TokenizerSettings, TrainTokenizerSettings, of_model


class EvaluationSettings(Section):
    """Frequency and size of evaluations on held-out text."""

    every: Natural = Field(
        default=100,
        description="Steps between two evaluations; 0 evaluates only at the end of the budget, and before the first "
        "step if at_start is set.",
    )
    at_start: Flag = Field(default=True, description="Whether to evaluate before the first step of a new run.")
    max_tokens: Positive = Field(default=65536, description="Maximum number of held-out tokens in an evaluation.")
    batch_size: Positive = Field(default=16, description="Sequences per forward pass of an evaluation.")


class SampleSettings(Section):
    """Text that the model generates at the end of a run."""

    prompt: str = Field(default="def ", description="Text that the sample continues.")
    max_new_tokens: Positive = Field(default=96, description="Maximum number of new tokens.")
    temperature: Number = Field(
        default=0.8, ge=0, description="Divisor of the logits before sampling; 0 always takes the likeliest token."
    )
    top_k: Natural = Field(default=50, description="Number of likeliest tokens to sample from; 0 means all.")


class TrainSettings(BaseSettings):
    """All settings of a run, built from the arguments only, so that a host's environment cannot leak in.

    ``holdfast.configs.settings_layers.load_settings`` reads files, environment and command line, since it must know
    each value's origin.
    """

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="HOLDFAST_", env_nested_delimiter="__", validate_default=False
    )

    run: RunSettings = Field(default_factory=RunSettings, description="Name, folder, seed and length of the run.")
    data: DataSettings = Field(
        default_factory=PythonLibraryDataSettings, description="The documents and how they are packed into rows."
    )
    tokenizer: TokenizerSettings = Field(default_factory=TrainTokenizerSettings, description="The tokenizer.")
    model: ModelSettings = Field(default_factory=HuggingFaceModelSettings, description="The model to train.")
    optimizer: OptimizerSettings = Field(
        default_factory=AccelerateOptimizerSettings, description="The optimizer, its batch and its learning rate."
    )
    state_store: StateStoreSettings = Field(
        default_factory=DiskStateStoreSettings, description="The store of checkpoints."
    )
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="Evaluation on held-out text."
    )
    recovery: RecoverySettings = Field(
        default_factory=RecoverySettings, description="Reaction to signals and failures."
    )
    monitors: tuple[MonitorSettings, ...] = Field(
        default=(ConsoleMonitorSettings(), JsonlMonitorSettings()),
        description="Destinations of the metrics: a list of kinds, replaced as a whole.",
    )
    handlers: tuple[HandlerSettings, ...] = Field(
        default=(), description="Event handlers from other packages: a list of kinds, replaced as a whole."
    )
    event_bus: EventBusSettings = Field(default_factory=BlinkerEventBusSettings, description="The event bus.")
    distributed: DistributedSettings = Field(
        default_factory=AutoDistributedSettings, description="The processes that train together."
    )
    resources: ResourceSettings = Field(default_factory=ResourceSettings, description="Use of the machine's resources.")
    profile: ProfileSettings = Field(default_factory=ProfileSettings, description="Profiling of some steps.")
    sample: SampleSettings = Field(
        default_factory=SampleSettings, description="Text that the model generates at the end of a run."
    )

    @field_validator("monitors")
    @classmethod
    def _are_distinct(cls, monitors: tuple[Any, ...]) -> tuple[Any, ...]:
        if any(monitor in monitors[:position] for position, monitor in enumerate(monitors)):
            msg = "names one monitor twice"
            raise ValueError(msg)
        return monitors

    @model_validator(mode="after")
    def _take_the_tokenizer_of_the_model(self) -> Self:
        if (followed := of_model(self.tokenizer, self.model)) is not None:
            self.__dict__["tokenizer"] = followed  # frozen for everybody else
        return self

    @field_validator("evaluation")
    @classmethod
    def _can_tell_the_best(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        if "state_store" in info.data and info.data["state_store"].keep_best and not evaluation.every:
            msg = (
                "has every=0, so state_store.keep_best could not find the best checkpoints: set it to a number of steps"
            )
            raise ValueError(msg)
        return evaluation

    @field_validator("profile")
    @classmethod
    def _begins_within_the_run(cls, profile: ProfileSettings, info: ValidationInfo) -> ProfileSettings:
        steps = info.data["run"].budget.steps if "run" in info.data else None
        if profile.bounds is not None and steps is not None and profile.bounds[0] > steps:
            msg = f"has steps {profile.steps}, but run.budget.steps ends the run at step {steps}: choose earlier steps"
            raise ValueError(msg)
        return profile

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the arguments only."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)
