"""The model to train."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import PLUGIN, Flag, PluginSettings, Section, Text, by_kind
from holdfast.configs.sections.decoder import BalancingLoss, Compile, DecoderModelSettings, GradientCheckpointing, Lora

SMALL_LLAMA: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "llama",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
)


class HuggingFaceModelSettings(Section):
    """A causal language model of Hugging Face: existing weights, an existing shape, or a shape written out here."""

    kind: Literal["huggingface"] = Field(
        default="huggingface", description="A causal language model of Hugging Face Transformers."
    )
    path: Text | None = Field(
        default=None, description="A model folder or a name on the hub; null builds the model from config."
    )
    revision: Text | None = Field(
        default=None, description="Branch, tag or commit on the hub; null means the default branch."
    )
    pretrained: Flag | None = Field(
        default=None, description="Whether to load the weights at path; false takes its config only; null means true."
    )
    size: Literal["10M", "124M", "350M", "1B", "3B", "8B"] | None = Field(
        default=None,
        description="Number of parameters of a Llama to build from scratch: 10M, 124M, 350M, 1B, 3B or 8B. It sets "
        "config, data.sequence_length, tokenizer.vocabulary_size, batch, learning rate and warm-up of the optimizer, "
        "and run.budget, where nothing else sets them, by published scaling laws; null sets none.",
    )
    config: dict[str, Any] | None = Field(
        default=None,
        description="Hugging Face config of a model to build from scratch: model_type and its fields. For model_type "
        "llama, the default, missing fields have the values of a small Llama. null if path is given.",
    )
    trust_remote_code: Text | None = Field(
        default=None,
        description="The value of model.path again, to allow running the code that comes with that model; null "
        "allows none.",
    )
    trust_pickle: Text | None = Field(
        default=None,
        description="The value of model.path again, to allow opening pickled weights in that folder, for their "
        "tensors only; null allows none.",
    )
    attention: Text = Field(
        default="auto",
        description="Implementation of attention: sdpa, eager, varlen, flex_attention, flash_attention_2, "
        "flash_attention_3, or one from another package; auto chooses the best for device and precision.",
    )
    loss: Text = Field(
        default="auto",
        description="Implementation of the loss: chunked never holds all logits at once, plain holds all of them, "
        "liger needs the package of that name; any other name is an outside loss; auto means chunked if it "
        "gives the same result for the model.",
    )
    balancing_loss: BalancingLoss = "auto"
    gradient_checkpointing: GradientCheckpointing = "none"
    compile: Compile = "auto"
    lora: Lora = None

    @model_validator(mode="before")
    @classmethod
    def _start_from_small_llama(cls, section: Any) -> Any:
        if not isinstance(section, Mapping) or section.get("path") is not None:
            return section
        config = section.get("config", {})
        if not isinstance(config, Mapping) or config.get("model_type", "llama") != "llama":
            return section
        return {**section, "config": {**SMALL_LLAMA, **config}}

    @field_validator("trust_remote_code")
    @classmethod
    def _is_the_path(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value != info.data.get("path"):
            msg = (
                f"must be the value of model.path, {info.data.get('path')}, to run the code that comes with that model"
            )
            raise ValueError(msg)
        return value

    @field_validator("trust_pickle")
    @classmethod
    def _is_the_path_too(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and value != info.data.get("path"):
            msg = f"must be the value of model.path, {info.data.get('path')}, to open a pickle that is in that folder"
            raise ValueError(msg)
        return value

    @field_validator("revision", "pretrained")
    @classmethod
    def _only_beside_path(cls, value: object, info: ValidationInfo) -> object:
        if value and "path" in info.data and info.data["path"] is None:
            msg = "needs model.path: a model built from model.config has none"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.path is not None and self.config is not None:
            msg = "has both path and config: keep one and set the other to null"
            raise ValueError(msg)
        if self.path is None and self.config is None:
            msg = "needs path or config"
            raise ValueError(msg)
        model_type = None if self.config is None else self.config.get("model_type")
        if self.path is None and not (isinstance(model_type, str) and model_type):
            msg = "needs config.model_type, such as llama"
            raise ValueError(msg)
        return self

    @property
    def loads_weights(self) -> bool:
        """Return whether training starts from the weights at ``path``."""
        return self.path is not None and self.pretrained is not False


class PluginModelSettings(PluginSettings):
    """A model of another package; it has none of the settings of built-in models."""

    path: ClassVar[str | None] = None
    revision: ClassVar[str | None] = None
    config: ClassVar[dict[str, Any] | None] = None
    loads_weights: ClassVar[bool] = False
    trust_remote_code: ClassVar[str | None] = None
    trust_pickle: ClassVar[str | None] = None
    attention: ClassVar[str] = "auto"
    loss: ClassVar[str] = "auto"
    balancing_loss: ClassVar[BalancingLoss] = "auto"
    gradient_checkpointing: ClassVar[str] = "none"
    compile: ClassVar[Compile] = "none"
    lora: ClassVar[Lora] = None


ModelSettings = Annotated[
    Annotated[HuggingFaceModelSettings, Tag("huggingface")]
    | Annotated[DecoderModelSettings, Tag("decoder")]
    | Annotated[PluginModelSettings, Tag(PLUGIN)],
    by_kind("huggingface", "decoder"),
]
