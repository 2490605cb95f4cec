"""Notes on weights that transformers has loaded from a model folder, for a person."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from transformers.utils import logging

from holdfast.adapters.model_factory.model_folder import weight_files
from holdfast.adapters.shared.tensor_state.sharded_tensors import tensors_in
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.phase import Amount
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from holdfast.adapters.shared.tensor_state.sharded_tensors import SlicedTensors
    from holdfast.domain.phase import ShowPhase

_NO_WEIGHTS = re.compile(r"(inv_freq|position_ids|masked_bias|causal_mask|(attn|attention)\.bias|\.version)$")
_MOST_NAMED = 3


def describe_ties(network: Any) -> Iterator[str]:
    """Let the configuration of ``network`` say which weights are tied, and yield a sentence if it said otherwise.

    transformers does not tie weights that the files hold with different values, whatever config.json says.
    """
    wanted, tied = network.get_expanded_tied_weights_keys(all_submodels=True), network.all_tied_weights_keys
    if wanted.keys() == tied.keys():
        return
    network.config.tie_word_embeddings = network.config.get_text_config().tie_word_embeddings = False
    if network.get_expanded_tied_weights_keys(all_submodels=True).keys() != tied.keys():
        msg = f"config.json ties {min(wanted.keys() - tied.keys())}, of which the files hold another value"
        raise ConfigurationError(msg)
    yield (
        f"config.json ties {', '.join(sorted(wanted))} to the embeddings, but the files hold other values: they are "
        "not tied, and checkpoints say so"
    )


def check_types(saved: SlicedTensors, is_weight: Callable[[str], bool] = lambda _: True) -> None:
    """Raise ``ConfigurationError`` if a tensor of ``saved`` that ``is_weight`` holds whole numbers, as no weight does.

    The bytes of a file with a wrong type, and weights that were quantized by a program of its own, would be read as
    numbers.
    """
    for name, tensor in saved.layout.tensors.items():
        if not tensor.dtype.is_floating_point and is_weight(name):
            kind = str(tensor.dtype).removeprefix("torch.")
            what = f"{name} is of the type {kind} in the model's weights, which is for whole numbers"
            msg = f"{what}: take a copy in float32"
            raise ConfigurationError(msg)


def check_types_in(folder: Path | None, network: Any) -> None:
    """Raise ``ConfigurationError`` if the files in ``folder`` hold whole numbers for a weight of ``network``.

    Weights that transformers knows to be quantized may be anything.
    """
    if folder is None or getattr(network.config, "quantization_config", None) is not None:
        return
    own = network.state_dict()
    with suppress(StateError), tensors_in(weight_files(folder)) as saved:  # no safetensors have types of their own
        check_types(saved, lambda name: name in own and own[name].is_floating_point())


def describe_unloaded(network: Any, folder: Path | None, unexpected: Collection[str]) -> Iterator[str]:
    """Yield a sentence if tensors in the files of ``folder`` have no place in ``network``.

    ``unexpected`` are those that transformers reports; it does not report all, such as those that predict several
    tokens at once.
    """
    patterns = getattr(network, "_keys_to_ignore_on_load_unexpected", None) or ()
    own = network.state_dict().keys()
    ignored = [name for name in _names_in(folder) if any(re.search(each, name) for each in patterns)]
    left = {*unexpected, *(name for name in ignored if name not in own and not _NO_WEIGHTS.search(name))}
    if left:
        named = ", ".join(sorted(left)[:_MOST_NAMED]) + (", ..." if len(left) > _MOST_NAMED else "")
        yield (
            f"{counted(len(left), 'tensor')} of the files are not loaded, as {type(network).__name__} has no place for "
            f"them, and exports do not have them: {named}"
        )


def _names_in(folder: Path | None) -> Collection[str]:
    if folder is None:
        return ()
    try:
        with tensors_in(weight_files(folder)) as saved:
            return saved.shapes.keys()
    except StateError:
        return ()  # no safetensors, whose other names transformers reports


@contextmanager
def loading_shown(show: ShowPhase) -> Iterator[None]:
    """Pass the number of loaded tensors to ``show`` within the block, in place of transformers' own bars."""

    def hook(factory: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        items = arguments[0] if arguments else options.get("iterable")
        if items is None or not hasattr(items, "__len__"):
            return factory(*arguments, **options)
        return _ShownItems(items, str(options.get("desc") or "Loading"), show)

    before = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


@final
class _ShownItems:
    """An iterable with the methods of a bar of tqdm that transformers calls, which do nothing."""

    def __init__(self, items: Any, phase: str, show: ShowPhase) -> None:
        self._items = items
        self._phase = phase[:1].lower() + phase[1:]
        self._show = show

    def __iter__(self) -> Iterator[Any]:
        total = len(self._items)
        for number, item in enumerate(self._items):
            self._show(self._phase, Amount(number, total, "tensors"))
            yield item

    def __getattr__(self, _: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object, **_options: object) -> None:
    pass


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
        tensors: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # errors of an unpickler have no common type
        reason = shorten(str(error).partition("\n")[0], width=200)
        msg = f"{file} holds objects other than tensors and was not loaded ({reason}): convert its weights"
        raise ConfigurationError(msg) from error
    weights = tensors if member is None or not isinstance(tensors, dict) else tensors.get(member)
    if not isinstance(weights, dict) or not all(isinstance(tensor, Tensor) for tensor in weights.values()):
        msg = f"{file} holds no weights by name: convert them with the program that made them"
        raise ConfigurationError(msg)
    return weights
