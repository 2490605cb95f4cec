"""Files of a model folder, and checks that the folder, possibly untrusted, does not point outside itself."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.network.hub_names import guess
from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGEST_INDEX = 64 << 20
_SETTINGS = "generation_config.json"
_ADAPTERS, _INDEX = "adapter_config.json", f"{MODEL_FILE}.index.json"


def check_model_folder(folder: Path) -> None:
    """Raise ``ConfigurationError`` if ``folder`` points outside itself; only maps of weights are opened.

    Links out of the folder are refused, except those of the hub's cache to its own blobs. Pipes, sockets and devices
    are refused too, and so are maps of weights that name anything but files in the folder, and adapters without a
    model.
    """
    root = folder.resolve()
    if (root / _ADAPTERS).is_file():
        base = read_json(root / _ADAPTERS).get("base_model_name_or_path") or "the base"
        msg = (
            f"{folder} holds adapters for {base}, which are no model by themselves: join both, by the command export "
            "--merged of their run, or by peft's "
            f"AutoPeftModelForCausalLM.from_pretrained({str(folder)!r}).merge_and_unload().save_pretrained(FOLDER), "
            "copy the tokenizer there, and set model.path=FOLDER"
        )
        raise ConfigurationError(msg)
    try:
        for entry in sorted(root.iterdir()):
            _check_entry(entry, root)
        for index in sorted(root.glob("*.safetensors.index.json")):
            _check_index(index)
        if (root / _SETTINGS).exists():
            read_json(root / _SETTINGS)  # of which transformers would take the defaults if they cannot be read
    except OSError as error:
        msg = f"the model folder {folder} cannot be read: {error.strerror or error}{guess(str(folder))}"
        raise ConfigurationError(msg) from error


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the model in ``folder``, those that transformers takes.

    Raises ``ConfigurationError`` for a damaged index.
    """
    index = folder / _INDEX
    if (folder / MODEL_FILE).is_file() or not index.is_file():
        return [folder / MODEL_FILE]
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict):
        msg = f"{index} has no weight_map: copy the model folder again"
        raise ConfigurationError(msg)
    return [folder / Path(str(name)).name for name in sorted(set(files.values()))]


def weights_left_aside(folder: Path) -> Iterator[str]:
    """Yield a sentence if ``folder`` holds the weights twice, as one file and by an index of several."""
    if (folder / MODEL_FILE).is_file() and (folder / _INDEX).is_file():
        yield (
            f"{folder} holds {MODEL_FILE} and {_INDEX}: as in transformers, {MODEL_FILE} is read, and the files that "
            "only the index names are not"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model folder; raises ``ConfigurationError`` if there is none."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path} cannot be read, {error}: set model.path to a model folder on this machine"
        raise ConfigurationError(msg) from error
    if not isinstance(config, dict):
        msg = f"{path} is not a JSON object: set model.path to a model folder on this machine"
        raise ConfigurationError(msg)
    return config


def _check_entry(entry: Path, root: Path) -> None:
    if entry.is_symlink():
        target = Path(os.path.realpath(entry))
        places = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
        if not any(target.is_relative_to(place) for place in places):
            msg = f"{entry} is a link that leads out of the model's folder: put a copy of its target there instead"
            raise ConfigurationError(msg)
    mode = entry.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        msg = f"{entry} is neither a file nor a folder: remove it from the model folder"
        raise ConfigurationError(msg)


def _check_index(index: Path) -> None:
    if index.stat().st_size > _LARGEST_INDEX:
        msg = f"{index} has more than {shown_size(_LARGEST_INDEX)}, too many for an index: copy the model again"
        raise ConfigurationError(msg)
    try:
        names = set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{index} is not an index of weights ({type(error).__name__}): copy the model again"
        raise ConfigurationError(msg) from error
    for name in sorted(names):
        if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
            msg = f"{index} names {name[:100]!r}, which is not a file in the same folder: get another copy"
            raise ConfigurationError(msg)
