"""Writes a model and its tokenizer as one GGUF file, and lets transformers read such a file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from holdfast.adapters.shared.model_export.gguf_architectures import architecture_of, extra_tensors, in_file_form
from holdfast.adapters.shared.model_export.library_output import silenced
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from holdfast.adapters.shared.model_export.gguf_architectures import GgufArchitecture
    from holdfast.adapters.shared.model_export.gguf_vocabulary import GgufVocabulary

_FILE_TYPES = {"f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
_IN_BLOCKS, _BLOCK = ("q8_0", "q4_0"), 32
_EMBEDDINGS, _POSITIONS = ("token_embd.weight", "output.weight"), "position_embd.weight"


@final
@dataclass(frozen=True, slots=True)
class GgufDescription:
    """The texts of a file beside model and tokenizer: a name, a licence, and the chat template if there is one."""

    name: str
    license: str | None = None
    chat_template: str | None = None


@final
@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model as transformers describes it: the ``config``, its ``tensors`` by their names there, and the tokenizer.

    Tensors are on the CPU, in any floating-point dtype; tied ones are there once.
    """

    config: Any
    tensors: Mapping[str, Tensor]
    vocabulary: GgufVocabulary
    description: GgufDescription


class _FileTensor(NamedTuple):
    """A tensor of a file: its ``name`` there and its name in the model, its type in GGUF, and its shape in the file."""

    name: str
    source: str
    kind: str
    shape: tuple[int, ...]


def gguf_package() -> Any:
    """Return the package ``gguf``; raises ``ConfigurationError`` if it is not installed."""
    try:
        return import_module("gguf")
    except ImportError as error:
        msg = 'GGUF needs another package: pip install "holdfast-lm[gguf]"'
        raise ConfigurationError(msg) from error


def write_gguf(model: GgufModel, path: Path, weights: str) -> Sequence[str]:
    """Write ``model`` to the new file ``path`` with matrices of the type ``weights``; return remarks on it.

    Vectors, norms and learned positions stay fp32. With ``q4_0`` the embedding and the output matrix are q8_0. A matrix
    whose rows do not fill blocks of 32 is f16. One tensor at a time is converted. Raises ``ConfigurationError`` if
    llama.cpp cannot compute the model or the type cannot hold its weights, and ``OSError``.
    """
    gguf = gguf_package()
    architecture = architecture_of(model.config)
    entries = _entries(gguf, architecture, model, weights)
    extra = extra_tensors(model.config)
    writer = gguf.GGUFWriter(path, architecture.name)
    try:
        for key, value in architecture.fields(model.config).items():
            _add(writer, f"{architecture.name}.{key}", value)
        _describe(gguf, writer, model, weights)
        for entry in (*(_FileTensor(name, name, "F32", tuple(each.shape)) for name, each in extra.items()), *entries):
            _announce(gguf, writer, entry)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in extra.values():
            writer.write_tensor_data(tensor.numpy())
        for entry in entries:
            tensor = in_file_form(architecture, model.config, entry.source, model.tensors[entry.source])
            writer.write_tensor_data(_converted(gguf, tensor.float().contiguous().numpy(), entry))
    finally:
        writer.close()
    return (*model.vocabulary.remarks, *_remarks(entries, weights))


def read_gguf(path: Path, original: Any) -> Any:
    """Return the model in ``path`` as transformers reads it, in fp32, with those fields of ``original`` it cannot read.

    ``original`` is the configuration that the file was written from. Raises ``StateError`` if weights are missing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    place, name = str(path.parent), path.name
    with silenced():
        config = AutoConfig.from_pretrained(place, gguf_file=name)
        for each in architecture_of(original).unread:
            setattr(config, each, getattr(original, each, None))
        network, report = AutoModelForCausalLM.from_pretrained(
            place, gguf_file=name, config=config, dtype="float32", trust_remote_code=False, output_loading_info=True
        )
    if missing := sorted(report["missing_keys"]):
        msg = f"{path} lacks {len(missing)} of the model's tensors, such as {missing[0]}"
        raise StateError(msg)
    return network


def read_gguf_tokenizer(path: Path) -> Any:
    """Return the tokenizer in ``path`` as transformers reads it."""
    from transformers import AutoTokenizer

    with silenced():
        return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, trust_remote_code=False)


def _entries(gguf: Any, architecture: GgufArchitecture, model: GgufModel, weights: str) -> Sequence[_FileTensor]:
    [number] = [key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name]
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    entries = []
    for source, tensor in model.tensors.items():
        name = names.get_name(source, try_suffixes=(".weight", ".bias"))
        if name is None:
            msg = f"llama.cpp has no place for the tensor {source} in a model of the type {architecture.name}"
            raise ConfigurationError(msg)
        shape = tuple(in_file_form(architecture, model.config, source, tensor).shape)
        entries.append(_FileTensor(name, source, _kind_of(name, shape, weights), shape))
    return entries


def _kind_of(name: str, shape: tuple[int, ...], weights: str) -> str:
    if len(shape) < 2 or name == _POSITIONS:
        return "F32"
    if weights not in _IN_BLOCKS:
        return weights.upper()
    if shape[-1] % _BLOCK:
        return "F16"
    return "Q8_0" if name in _EMBEDDINGS else weights.upper()


def _describe(gguf: Any, writer: Any, model: GgufModel, weights: str) -> None:
    vocabulary, description = model.vocabulary, model.description
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(description.name)
    if description.license is not None:
        writer.add_license(description.license)
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[weights]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_tokenizer_model(vocabulary.merging.model)
    writer.add_tokenizer_pre(vocabulary.merging.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merging.scores:
        writer.add_token_scores(vocabulary.merging.scores)
        writer.add_add_space_prefix(True)
    else:
        writer.add_token_merges(vocabulary.merging.merges)
    for name, number in vocabulary.special.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(vocabulary.adds_eos)
    if description.chat_template is not None:
        writer.add_chat_template(description.chat_template)


def _add(writer: Any, key: str, value: float | str) -> None:
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
    add(key, value)


def _announce(gguf: Any, writer: Any, entry: _FileTensor) -> None:
    if entry.kind == "F32":
        writer.add_tensor_info(entry.name, entry.shape, np.dtype(np.float32), 4 * prod(entry.shape))
        return
    kind = gguf.GGMLQuantizationType[entry.kind]
    size = gguf.quant_shape_to_byte_shape(entry.shape, kind)
    writer.add_tensor_info(entry.name, size, np.dtype(np.uint8), prod(size), raw_dtype=kind)


def _converted(gguf: Any, values: NDArray[np.float32], entry: _FileTensor) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        found: NDArray[Any] = gguf.quantize(values, gguf.GGMLQuantizationType[entry.kind])
    if entry.kind == "F16" and not np.isfinite(found).all() and np.isfinite(values).all():
        msg = f"{entry.source} holds numbers that f16 cannot represent: choose --format gguf:bf16"
        raise ConfigurationError(msg)
    return found


def _remarks(entries: Sequence[_FileTensor], weights: str) -> Sequence[str]:
    others = [entry for entry in entries if entry.kind == "F16" and weights != "f16"]
    if not others:
        return ()
    return (
        f"{len(others)} matrices, such as {others[0].source}, are stored as f16: their rows do not fill blocks of 32",
    )
