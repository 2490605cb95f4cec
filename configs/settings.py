"""The settings of a run, with a section for each concern and a ``kind`` for each port."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from holdfast.configs.ready_configurations import quickstart_defaults
from holdfast.configs.sections.base import problem_of_metric
from holdfast.configs.sections.data import DataSettings, MixtureDataSettings, PythonLibraryDataSettings
from holdfast.configs.sections.distributed import (
    AutoDistributedSettings,
    DistributedSettings,
    MeshSettings,
    mesh_settings,
)
from holdfast.configs.sections.evaluation import EvaluationSettings, SampleSettings, default_prompt
from holdfast.configs.sections.ledger import LedgerSettings, NoLedgerSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings, ModelSettings
from holdfast.configs.sections.monitors import (
    ConsoleMonitorSettings,
    HandlerSettings,
    JsonlMonitorSettings,
    MonitorSettings,
    ProfileSettings,
    WrapperSettings,
)
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings, DpoSettings, OptimizerSettings
from holdfast.configs.sections.recovery import RecoverySettings, ResourceSettings
from holdfast.configs.sections.run import BlinkerEventBusSettings, EventBusSettings, RunSettings, with_default_budget
from holdfast.configs.sections.state_store import DiskStateStoreSettings, StateStoreSettings
from holdfast.configs.sections.tokenizer import TokenizerSettings, TrainTokenizerSettings, of_model
from holdfast.configs.sections.tune import TuneSettings


class TrainSettings(BaseSettings):
    """All settings of a run, built from the arguments only, so that the host's environment has no effect.

    ``holdfast.configs.settings_layers.load_settings`` reads files, environment and command line, because it must know
    the origin of each value.
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
    ledger: LedgerSettings = Field(
        default_factory=NoLedgerSettings, description="Record of the documents that each step has read."
    )
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="Evaluations on held-out text, by samples and by suites."
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
    wrappers: tuple[WrapperSettings, ...] = Field(
        default=(),
        description="Wrappers of parts, from other packages: a list, replaced as a whole; a later one wraps an earlier "
        "one of the same part.",
    )
    event_bus: EventBusSettings = Field(default_factory=BlinkerEventBusSettings, description="The event bus.")
    distributed: DistributedSettings = Field(
        default_factory=AutoDistributedSettings, description="The processes that train together."
    )
    resources: ResourceSettings = Field(default_factory=ResourceSettings, description="Use of the machine's resources.")
    profile: ProfileSettings = Field(default_factory=ProfileSettings, description="Profiling of some steps.")
    tune: TuneSettings = Field(default_factory=TuneSettings, description="Search for better settings by `tune`.")
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

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        self.__dict__["run"] = with_default_budget(self.run, self.data.epochs)
        if self.run.budget.has_limit:
            return self
        kind, text = "value_error", "{error}"
        if self.data.epochs is None:
            msg = "needs steps, tokens or minutes, or data.epochs a number, or the run has no end"
            raise PydanticCustomError(kind, text, {"error": msg, "place": ("run", "budget")})
        if self.data.mode == "stream":
            msg = (
                f"is {self.data.epochs}, which alone is no length, as the rows of data.mode=stream are not counted: "
                "set run.budget.steps, .tokens or .minutes too"
            )
            raise PydanticCustomError(kind, text, {"error": msg, "place": ("data", self.data.kind, "epochs")})
        return self

    @model_validator(mode="after")
    def _take_the_defaults_of_the_quickstart(self) -> Self:
        defaults = quickstart_defaults(self.run, self.data, self.model, self.optimizer, self.distributed)
        self.__dict__.update(defaults)
        return self

    @model_validator(mode="after")
    def _take_the_prompt_that_suits_the_data(self) -> Self:
        if "prompt" not in self.sample.model_fields_set:
            prompt = default_prompt(self.data.kind, self.data.task)
            self.__dict__["sample"] = self.sample.model_copy(update={"prompt": prompt})
        return self

    @field_validator("optimizer")
    @classmethod
    def _is_of_its_task(cls, optimizer: OptimizerSettings, info: ValidationInfo) -> OptimizerSettings:
        if "data" not in info.data:
            return optimizer
        task = info.data["data"].task
        if task != "preference":
            if optimizer.dpo != DpoSettings():
                msg = f"has dpo, which belongs to data.task=preference, but data.task is {task}: change either"
                raise ValueError(msg)
        elif optimizer.kind not in ("accelerate", "deepspeed"):
            msg = f"has kind={optimizer.kind}, which cannot train on data.task=preference: use accelerate"
            raise ValueError(msg)
        return optimizer

    @field_validator("model")
    @classmethod
    def _computes_the_loss_of_its_task(cls, model: ModelSettings, info: ValidationInfo) -> ModelSettings:
        is_of_pairs = "data" in info.data and info.data["data"].task == "preference"
        if is_of_pairs and model.loss not in ("auto", "chunked", "plain"):
            msg = f"has loss={model.loss}, but the loss of data.task=preference is DPO: set model.loss=auto"
            raise ValueError(msg)
        return model

    @field_validator("ledger")
    @classmethod
    def _stores_no_hash_in_plain(cls, ledger: LedgerSettings, info: ValidationInfo) -> LedgerSettings:
        is_stored = ledger.kind not in {"none", "memory"}
        if is_stored and "data" in info.data and info.data["data"].is_encrypted:
            msg = (
                f"has kind={ledger.kind}, which stores hashes of documents unencrypted, but data.cache.encryption is "
                "set: leave the ledger out; the command samples computes the documents of a step"
            )
            raise ValueError(msg)
        return ledger

    @field_validator("evaluation")
    @classmethod
    def _can_tell_the_best(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        if "state_store" in info.data and info.data["state_store"].keep_best and not evaluation.every:
            msg = (
                "has every=0, so state_store.keep_best could not find the best checkpoints: set it to a number of steps"
            )
            raise ValueError(msg)
        return evaluation

    @field_validator("evaluation")
    @classmethod
    def _has_names_of_its_own(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        data = info.data.get("data")
        sources = data.sources if isinstance(data, MixtureDataSettings) else {}
        if twice := sorted((evaluation.sets or {}).keys() & sources.keys()):
            msg = f"has the set {twice[0]!r}, but a source of data.sources has this name: choose another one"
            raise ValueError(msg)
        return evaluation

    @field_validator("evaluation")
    @classmethod
    def _finds_checkpoints(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        if evaluation.suites and "state_store" in info.data and info.data["state_store"].kind != "disk":
            msg = "has suites, which evaluate checkpoints in the run folder: set state_store.kind=disk"
            raise ValueError(msg)
        return evaluation

    @field_validator("distributed")
    @classmethod
    def _can_divide_the_model(cls, distributed: DistributedSettings, info: ValidationInfo) -> DistributedSettings:
        mesh = mesh_settings(distributed)
        if mesh == MeshSettings():
            return distributed
        optimizer, model, data = (info.data.get(name) for name in ("optimizer", "model", "data"))
        if optimizer is not None and optimizer.kind != "accelerate":
            msg = f"has a mesh, which optimizer.kind={optimizer.kind} cannot use: set optimizer.kind=accelerate"
            raise ValueError(msg)
        if optimizer is not None and optimizer.precision == "fp8":
            msg = "has a mesh, which does not work with optimizer.precision=fp8: set optimizer.precision=bf16"
            raise ValueError(msg)
        if model is not None and model.lora is not None:
            msg = "has a mesh, which does not work with model.lora: leave distributed.mesh out"
            raise ValueError(msg)
        if model is not None and model.compile not in ("auto", "none"):
            msg = f"has a mesh, which was not tried with model.compile={model.compile}: set model.compile=none"
            raise ValueError(msg)
        if mesh.pipeline > 1:
            _check_pipeline(mesh, optimizer, model, data)
        if mesh.context > 1 and data is not None and data.task == "preference":
            msg = "has mesh.context, which does not work with data.task=preference: set distributed.mesh.context=1"
            raise ValueError(msg)
        return distributed

    @field_validator("recovery")
    @classmethod
    def _can_stop_early(cls, recovery: RecoverySettings, info: ValidationInfo) -> RecoverySettings:
        if not recovery.early_stopping.patience:
            return recovery
        msg = ""
        data, evaluation = info.data.get("data"), info.data.get("evaluation")
        has_sets = evaluation is not None and evaluation.sets
        if data is not None and (problem := problem_of_metric(recovery.early_stopping.metric, data.task)):
            msg = f"{problem}: set recovery.early_stopping.metric=eval_loss"
        elif data is not None and not (data.holdout or data.folds is not None or has_sets):
            msg = "data.holdout is 0, so there are no documents to evaluate on: hold out a part of the data"
        elif evaluation is not None and not evaluation.every:
            msg = "evaluation.every is 0, so there are no evaluations during training: set it to a number of steps"
        if msg:
            msg = f"has early_stopping.patience={recovery.early_stopping.patience}, but {msg}"
            raise ValueError(msg)
        return recovery

    @field_validator("evaluation")
    @classmethod
    def _compares_held_out_pairs(cls, evaluation: EvaluationSettings, info: ValidationInfo) -> EvaluationSettings:
        if evaluation.sets and "data" in info.data and info.data["data"].task == "preference":
            msg = (
                "has sets, but with data.task=preference only held-out pairs have reference log-probabilities: leave "
                "evaluation.sets out, and set data.holdout"
            )
            raise ValueError(msg)
        return evaluation

    @field_validator("profile")
    @classmethod
    def _begins_within_the_run(cls, profile: ProfileSettings, info: ValidationInfo) -> ProfileSettings:
        names = ("run", "data", "model", "optimizer", "distributed")
        if not all(name in info.data for name in names):  # one of them has a mistake, which is reported
            return profile
        run, *others = (info.data[name] for name in names)
        run = with_default_budget(run, info.data["data"].epochs)
        defaults: dict[str, Any] = {**quickstart_defaults(run, *others)}
        steps = defaults.get("run", run).budget.steps
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


def _check_pipeline(mesh: MeshSettings, optimizer: Any, model: Any, data: Any) -> None:
    """Raise ``ValueError`` if a pipeline does not work with the other axes or sections; invalid sections are None."""
    msg = ""
    if mesh.replicate * mesh.context * mesh.tensor > 1:
        msg = "does not work with another axis: leave replicate, context and tensor at 1"
    elif model is not None and model.kind != "decoder":
        msg = f"cannot divide model.kind={model.kind}: set model.kind=decoder"
    elif data is not None and data.task == "preference":
        msg = "does not work with data.task=preference: set distributed.mesh.pipeline=1"
    elif optimizer is not None and optimizer.sharding == "fsdp2":
        msg = "divides the layers, and optimizer.sharding=fsdp2 would divide each of them: set optimizer.sharding=auto"
    elif optimizer is not None and optimizer.offload:
        msg = "does not work with optimizer.offload: set optimizer.offload=false"
    if msg:
        msg = f"has mesh.pipeline, which {msg}"
        raise ValueError(msg)


def usual_settings(data_kind: str, *, task: str = "text", epochs: int | None = None) -> TrainSettings:
    """Return the settings of a run on data of ``data_kind`` if nothing but its data, their task and epochs are given.

    The section of the data is that of the Python standard library, whose defaults hold for no other kind.
    """
    if data_kind == PythonLibraryDataSettings.model_fields["kind"].default:
        usual = TrainSettings()
    else:
        run, data, optimizer = RunSettings(), PythonLibraryDataSettings(), AccelerateOptimizerSettings()
        usual = TrainSettings.model_validate(
            {
                "run": {"budget": run.budget.model_dump()},
                "data": {"sequence_length": data.sequence_length},
                "optimizer": {"algorithm": optimizer.algorithm, "learning_rate": optimizer.learning_rate},
                "sample": {"prompt": default_prompt(data_kind, task)},
            }
        )
    return usual if epochs is None else usual.model_copy(update={"run": with_default_budget(RunSettings(), epochs)})
