"""Writes a model folder with the quantized weights of torchao, and reads it back."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from holdfast.adapters.shared.model_export.linear_gpt2 import with_linear_layers
from holdfast.adapters.shared.tensor_state.file_parts import TextPart, write_parts
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.model_export.whole_model import WholeModel

_GROUP = 32


def torchao_package() -> Any:
    """Return the functions of torchao; raises ``ConfigurationError`` if it is not installed."""
    try:
        with _quiet():
            return import_module("torchao.quantization")
    except ImportError as error:
        msg = 'quantization by torchao needs another package: pip install "holdfast-lm[torchao]"'
        raise ConfigurationError(msg) from error


def write_torchao(model: WholeModel, source: Path, folder: Path, weights: str) -> Sequence[str]:
    """Write ``model`` into ``folder`` with linear layers, but not the head, of the type ``weights``; return remarks.

    ``source`` is an empty folder for the unquantized model. Raises ``ConfigurationError`` and ``OSError``.
    """
    from transformers import AutoModelForCausalLM, TorchAoConfig

    torchao = torchao_package()
    linear = with_linear_layers(model)
    config = TextPart("config.json", linear.config.to_json_string(use_diff=False))
    write_parts((config, TensorsPart("model.safetensors", linear.tensors, {})), source)
    with _quiet():
        network = AutoModelForCausalLM.from_pretrained(
            str(source),
            quantization_config=TorchAoConfig(_kind(torchao, weights)),
            dtype=torch.bfloat16,
            trust_remote_code=False,
        )
        network.save_pretrained(folder)
    return ()


def read_torchao(folder: Path) -> Any:
    """Return the model in ``folder`` as transformers reads it; raises ``StateError`` if weights are missing."""
    from transformers import AutoModelForCausalLM

    with _quiet():
        network, report = AutoModelForCausalLM.from_pretrained(
            str(folder), trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(report["missing_keys"]):
        msg = f"{folder} lacks {len(missing)} of the model's tensors, such as {missing[0]}"
        raise StateError(msg)
    return network


def _kind(torchao: Any, weights: str) -> Any:
    if weights == "int8":
        return torchao.Int8WeightOnlyConfig()
    if weights == "int4":
        return torchao.Int4WeightOnlyConfig(group_size=_GROUP)
    return torchao.Float8WeightOnlyConfig()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ignore what torchao reports about its kernels and about the future of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
