"""A complete model as transformers describes it: its configuration and its weights by name."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import torch
from transformers import AutoConfig

from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE, TextPart
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from holdfast.ports.state_store import StatePart

_CONFIG = "config.json"
_DTYPES = MappingProxyType({"bf16": torch.bfloat16, "f16": torch.float16})


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


def in_dtype(parts: Sequence[StatePart], name: str) -> Sequence[StatePart]:
    """Return the files ``parts`` of a model with its floating-point weights rounded to the dtype called ``name``.

    Its config.json says so. Raises ``ConfigurationError`` if a weight becomes infinite.
    """
    return [_rounded(part, _DTYPES[name]) for part in parts]


def _rounded(part: StatePart, dtype: torch.dtype) -> StatePart:
    if isinstance(part, TextPart) and part.name == _CONFIG:
        fields = json.loads(part.text, object_hook=lambda found: _with_dtype(found, str(dtype).removeprefix("torch.")))
        return TextPart(part.name, json.dumps(fields, indent=2, sort_keys=True) + "\n")
    if not isinstance(part, TensorsPart):
        return part
    rounded = dict(part.tensors)
    for name, tensor in part.tensors.items():
        if not tensor.is_floating_point():
            continue
        rounded[name] = tensor.to(dtype)
        if not rounded[name].isfinite().all() and tensor.isfinite().all():
            msg = f"{name} has numbers that are too large for {dtype}: export with --format huggingface:bf16"
            raise ConfigurationError(msg)
    return TensorsPart(part.name, rounded, part.more)


def _with_dtype(fields: dict[str, Any], dtype: str) -> dict[str, Any]:
    return {key: dtype if key in ("dtype", "torch_dtype") else value for key, value in fields.items()}


@contextmanager
def silenced() -> Iterator[None]:
    """Within the block, ignore warnings and all text for Python's standard streams; errors are raised."""
    nowhere = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        yield
