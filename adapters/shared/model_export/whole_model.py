"""A complete model as transformers describes it: its configuration and its weights by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from transformers import AutoConfig

from holdfast.adapters.shared.tensor_state.file_names import MODEL_FILE
from holdfast.adapters.shared.tensor_state.file_parts import TextPart
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from holdfast.ports.state_store import StatePart

_CONFIG = "config.json"


@final
@dataclass(frozen=True, slots=True)
class WholeModel:
    """A configuration of transformers with all its fields, and the tensors, on the CPU, by their names there.

    Tied tensors are there once.
    """

    config: Any
    tensors: Mapping[str, Tensor]


def whole_model(parts: Sequence[StatePart]) -> WholeModel:
    """Return the model in ``parts``, which ``CausalLanguageModel.capture`` returned for a model without adapters.

    Raises ``ConfigurationError`` if the configuration is of a class that transformers does not have itself.
    """
    [text] = [part.text for part in parts if isinstance(part, TextPart) and part.name == _CONFIG]
    [tensors] = [part.tensors for part in parts if isinstance(part, TensorsPart) and part.name == MODEL_FILE]
    fields = json.loads(text)
    try:
        return WholeModel(AutoConfig.for_model(**fields), tensors)
    except ValueError as error:
        msg = (
            f"{fields.get('model_type')} is no type of model that transformers has itself: export it with "
            "--format huggingface"
        )
        raise ConfigurationError(msg) from error
