"""Weights in formats other than safetensors: the check that they are trusted, and their reader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_LATEST = "latest"
_WHOLE = "mp_rank_00_model_states.pt"


@dataclass(frozen=True, slots=True)
class Trust:
    """The model whose code and pickled weights, both of which can run code, the user trusts.

    Both are the path of the model, so another path, or a default, trusts nothing.
    """

    code_of: str | None = None
    pickle_of: str | None = None


def pickled_weights(path: str, trusted: str | None) -> Mapping[str, Tensor] | None:
    """Return the weights in the folder ``path`` if they are a pickle, None if they are safetensors or do not exist.

    The tensors have the shapes and dtypes of the file. A pickle is opened only if ``trusted`` is ``path``, and torch
    then reads only tensors and plain values and refuses pickles that would call anything else. Raises
    ``ConfigurationError`` for a pickle that is not trusted or not readable, and for shards of ZeRO-3.
    """
    folder = Path(path)
    if not folder.is_dir() or any((folder / name).is_file() for name in _SAFE):
        return None
    files, member = _pickles(folder)
    if not files:
        return None
    if trusted != path:
        msg = (
            f"the weights in {path} are a pickle, {files[0].relative_to(folder)}, and no safetensors: convert them, or "
            f"set model.trust_pickle={path} to have their tensors read"
        )
        raise ConfigurationError(msg)
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= _tensors(file, member)
    return weights


def _pickles(folder: Path) -> tuple[Sequence[Path], str | None]:
    """Return the files of the weights, and their key in each file, None if a file has only weights."""
    if (folder / _PICKLE).is_file():
        return [folder / _PICKLE], None
    if (folder / _INDEX).is_file():
        return _shards(folder), None
    if (folder / _LATEST).is_file():
        return [_deepspeed(folder)], "module"
    return [], None


def _shards(folder: Path) -> Sequence[Path]:
    try:
        named = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / Path(name).name for name in sorted(set(named))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{folder / _INDEX} names no files: copy the model folder again"
        raise ConfigurationError(msg) from error


def _deepspeed(folder: Path) -> Path:
    """Return the file of the model in the checkpoint of DeepSpeed that ``latest`` names."""
    tag = (folder / _LATEST).read_text(encoding="utf-8", errors="replace").strip()
    inner = folder / Path(tag).name
    if any(inner.glob("zero_pp_rank_*_model_states.pt")):
        msg = (
            f"{inner} holds a model that ZeRO-3 has sharded: join it with the script that DeepSpeed left there, "
            f"python {folder / 'zero_to_fp32.py'} {folder} {folder}-joined --safe_serialization, copy config.json "
            f"there and set model.path={folder}-joined"
        )
        raise ConfigurationError(msg)
    if not (inner / _WHOLE).is_file() or (inner / "mp_rank_01_model_states.pt").exists():
        msg = f"{inner} holds no whole model, {_WHOLE}: export it there as safetensors and set model.path to that"
        raise ConfigurationError(msg)
    return inner / _WHOLE


def _tensors(file: Path, member: str | None) -> Mapping[str, Tensor]:
    try:
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # errors of an unpickler have no common type
        reason = shorten(str(error).partition("\n")[0], width=200)
        msg = f"{file} holds objects other than tensors and was not loaded ({reason}): convert its weights"
        raise ConfigurationError(msg) from error
    weights = found if member is None or not isinstance(found, dict) else found.get(member)
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        msg = f"{file} holds no weights by name: convert them with the program that made them"
        raise ConfigurationError(msg)
    return weights
