"""Notes on weights that transformers has loaded from a model folder, for a person."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.adapters.model_factory.model_folder import weight_files
from holdfast.adapters.shared.tensor_state.sharded_tensors import tensors_in
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from holdfast.adapters.shared.tensor_state.sharded_tensors import SlicedTensors

_NO_WEIGHTS = re.compile(r"(inv_freq|position_ids|masked_bias|causal_mask|(attn|attention)\.bias|\.version)$")
_MOST_NAMED = 3


def describe_ties(network: Any) -> Iterator[str]:
    """Let the configuration of ``network`` say which weights are tied, and yield a sentence if it said otherwise.

    transformers does not tie weights that the files hold with different values, whatever config.json says.
    """
    wanted, found = network.get_expanded_tied_weights_keys(all_submodels=True), network.all_tied_weights_keys
    if wanted.keys() == found.keys():
        return
    network.config.tie_word_embeddings = network.config.get_text_config().tie_word_embeddings = False
    if network.get_expanded_tied_weights_keys(all_submodels=True).keys() != found.keys():
        msg = f"config.json ties {min(wanted.keys() - found.keys())}, of which the files hold another value"
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
