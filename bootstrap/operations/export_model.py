"""A trained model as a folder that Hugging Face tools load."""

from __future__ import annotations

import shutil
from filecmp import cmp
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.adapters.shared.tensor_state.file_parts import write_parts
from holdfast.bootstrap.operations.named_checkpoint import NEWEST
from holdfast.bootstrap.operations.trained_model import open_trained
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.ports.state_store import StatePart


def export(
    run: Path, folder: Path, *, merged: bool, choice: Choice = NEWEST, trusted: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, bool]:
    """Write the checkpoint of ``run`` that ``choice`` names as a model folder with its tokenizer.

    A run with adapters gives only the adapters, in the format of PEFT, or with ``merged`` a complete model that needs
    no PEFT. ``folder`` must be new or empty, or already hold exactly the same files; it is written completely or not at
    all. Returns the location of the checkpoint, and whether the folder was written now. ``trusted`` is as in
    ``open_trained``. Raises ``ConfigurationError`` if the model has no form that transformers loads or if ``folder``
    holds other files, and ``StateError`` if there is no checkpoint or the folder cannot be written.
    """
    folder = folder.resolve()  # . and .. have no name of their own
    is_taken = _check_room(folder)
    trained = open_trained(run, device="cpu", choice=choice, trusted=trusted)  # a GPU may be too small for a mere copy
    parts = _model_parts(trained.model, run, merged=merged)
    draft = folder.with_name(f".{folder.name}.{uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        write_parts(parts, draft)
        trained.tokenizer.write(draft)
        if not is_taken:
            draft.replace(folder)  # an empty folder makes room
        elif not _are_alike(draft, folder):
            msg = f"{folder} already exists and holds something else: name a new folder, or an empty one"
            raise ConfigurationError(msg)
    except OSError as error:
        msg = f"{folder} cannot be written: {error.strerror or error}"
        raise StateError(msg) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return trained.location, not is_taken


def _check_room(folder: Path) -> bool:
    """Return whether ``folder`` may hold an export; raises ``ConfigurationError`` if it holds other files."""
    try:
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        may_be_export = is_taken and any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    except OSError as error:
        msg = f"{folder} cannot be read: {error.strerror}"
        raise StateError(msg) from error
    if is_taken and not may_be_export:
        msg = f"{folder} already exists: name a new folder, or an empty one"
        raise ConfigurationError(msg)
    return is_taken


def _are_alike(first: Path, second: Path) -> bool:
    """Return whether both folders hold the same files, byte for byte, and nothing else."""
    ours, theirs = (sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in (first, second))
    if ours != theirs or any(not (second / name).is_file() for name in ours if (first / name).is_file()):
        return False
    return all(cmp(first / name, second / name, shallow=False) for name in ours if (first / name).is_file())


def _model_parts(model: object, run: Path, *, merged: bool) -> Sequence[StatePart]:
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel

    if not isinstance(model, CausalLanguageModel):
        msg = f"{run} trained a {type(model).__name__}, which has no form that transformers loads"
        raise ConfigurationError(msg)
    if merged and model.adapters is None:
        msg = f"{run} trained no adapters, so there is nothing to merge: leave out --merged"
        raise ConfigurationError(msg)
    if model.adapters is not None and not merged:
        return _adapter_parts(model, run)
    _check_decoder(model)
    if merged:
        from holdfast.adapters.shared.modeling.lora import merge_lora

        merge_lora(model)
    return model.capture()


def _adapter_parts(model: CausalLanguageModel, run: Path) -> Sequence[StatePart]:
    from holdfast.adapters.shared.modeling.lora import LoraAdapters

    assert isinstance(model.adapters, LoraAdapters)
    if model.adapters.base_path is None:
        msg = f"the base of {run}'s adapters was initialized from a seed, so no folder holds it: add --merged"
        raise ConfigurationError(msg)
    if _is_decoder(model) and model.network.config.model_type != "llama":
        msg = f"the names of {run}'s adapters are not those that its base has in transformers: add --merged"
        raise ConfigurationError(msg)
    return model.adapters.exported(model.adapters.tensors(model.network))


def _check_decoder(model: CausalLanguageModel) -> None:
    if _is_decoder(model):
        from holdfast.adapters.shared.decoder.huggingface_config import check_exportable

        check_exportable(model.network.config.shape)


def _is_decoder(model: CausalLanguageModel) -> bool:
    from holdfast.adapters.shared.decoder.network import DecoderNetwork

    return isinstance(model.network, DecoderNetwork)
