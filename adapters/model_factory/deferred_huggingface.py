"""Builds models of transformers whose weights are drawn or read after the model was divided among ranks."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from holdfast.adapters.model_factory.loaded_weights import check_types
from holdfast.adapters.model_factory.model_folder import weight_files
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.deferred_weights import DeferredWeights, InitialWeight, draw_weights
from holdfast.adapters.shared.tensor_state.local_shards import assign
from holdfast.adapters.shared.tensor_state.sharded_tensors import tensors_in
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedConfig

    from holdfast.adapters.shared.modeling.deferred_weights import Fill

DEFERRED = frozenset({"gpt2", "llama", "mistral", "qwen2", "qwen3"})
"""The model types whose layers are alike, so that one layer shows what a check of the model would find."""
_PROBED_IDS = 512


def build_deferred(
    config: PreTrainedConfig, build: Callable[[PreTrainedConfig], Any], seed: int, folder: Path | None
) -> CausalLanguageModel | None:
    """Return the model that ``build`` draws for ``config``, with its weights deferred; None if that is impossible.

    With ``folder`` its weights are read there, if the files have exactly the model's tensors, by the same names.
    """
    if config.model_type not in DEFERRED or len(set(getattr(config, "layer_types", None) or [])) > 1:
        return None
    undrawn = build_undrawn(lambda: build(config), seed)
    if undrawn is None or (folder is not None and not _has_weights_of(undrawn.network, folder)):
        return None
    fill: Fill = undrawn.draw if folder is None else partial(_read, found=undrawn, folder=folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        probed = build(_smallest(config))
    return CausalLanguageModel(undrawn.network.train(), deferred=DeferredWeights(fill, probed.train()))


def _has_weights_of(network: Any, folder: Path) -> bool:
    own: dict[int, tuple[str, torch.Size]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        own.setdefault(id(tensor), (name, tensor.shape))
    try:
        with tensors_in(weight_files(folder)) as saved:
            return saved.shapes == dict(own.values())
    except StateError:
        return False  # transformers may find other files there


def _read(model: CausalLanguageModel, found: UndrawnNetwork, folder: Path) -> None:
    found.place_kept(model)
    try:
        with tensors_in(weight_files(folder)) as saved:
            check_types(saved)
            model.loading(saved)()
    except StateError as error:
        msg = f"the weights in {folder} cannot be used: {error}"
        raise ConfigurationError(msg) from error


def _smallest(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return ``config`` with one layer and few ids."""
    small: Any = deepcopy(config)
    small.num_hidden_layers = 1
    small.vocab_size = min(small.vocab_size, _PROBED_IDS)
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
    for name in ("bos_token_id", "eos_token_id"):
        setattr(small, name, None)
    return small


_aten = torch.ops.aten
_RANDOM = frozenset({_aten.normal_.default, _aten.uniform_.default})
_OVERWRITE = _RANDOM | {_aten.zero_.default, _aten.fill_.Scalar}
_BY_ELEMENT = frozenset(
    {_aten.mul_.Scalar, _aten.add_.Scalar, _aten.div_.Scalar, _aten.erfinv_.default, _aten.clamp_.default}
)
_VIEWS = frozenset({_aten.detach.default, _aten.alias.default})


@final
@dataclass(frozen=True, slots=True)
class _Change:
    """A change in place of all elements of the tensor with the storage ``place``."""

    function: Any
    place: int
    size: int
    arguments: Sequence[Any]
    options: Mapping[str, Any]

    def apply(self, values: Tensor, generator: torch.Generator) -> None:
        more = {"generator": generator} if self.function in _RANDOM else {}
        self.function(values, *self.arguments, **self.options, **more)


@final
class _DrawRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts new fp32 tensors without values on the meta device, and records what is then done to them.

    ``is_complete`` is false once something else happened to them, or other random numbers were drawn.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changes: list[_Change] = []
        self.is_complete = True
        self._tensors: list[Tensor] = []  # alive, so that no other tensor gets the storage's number

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is _aten.empty.memory_format and _is_weight(options):
            self._tensors.append(func(*args, **{**options, "device": "meta"}))
            return self._tensors[-1]
        tensors = [each for each in (*args, *options.values()) if isinstance(each, torch.Tensor)]
        if not any(tensor.is_meta for tensor in tensors):
            self.is_complete &= torch.Tag.nondeterministic_seeded not in func.tags
            return func(*args, **options)
        if func in _VIEWS:
            return func(*args, **options)
        target, storage = tensors[0], tensors[0].untyped_storage()
        is_whole = target.is_meta and len(tensors) == 1 and target.nbytes == storage.nbytes()
        if func in _OVERWRITE | _BY_ELEMENT and is_whole:
            self.changes.append(_Change(func, storage._cdata, target.numel(), args[1:], options))  # noqa: SLF001  no public name
            return target
        self.is_complete = False
        return func(*args, **options)


def _is_weight(options: Mapping[str, Any]) -> bool:
    device = torch.device(options.get("device") or "cpu")
    return device.type == "cpu" and (options.get("dtype") or torch.get_default_dtype()) == torch.float32


@final
@dataclass(frozen=True, slots=True)
class UndrawnNetwork:
    """A network on the meta device, and the values that its construction draws and computes.

    ``weights`` are the draws in their order, ``kept`` the parameters and buffers that are not drawn, by their names.
    """

    network: Any
    weights: Sequence[InitialWeight]
    kept: Mapping[str, Tensor]

    def draw(self, model: Any) -> None:
        """Draw the weights that a ``CausalLanguageModel`` still has of the network, into their place."""
        self.place_kept(model)
        draw_weights(self.weights, dict(model.network.named_parameters()))

    @torch.no_grad()
    def place_kept(self, model: Any) -> None:
        """Copy this rank's part of what is not drawn into a ``CausalLanguageModel``."""
        targets = {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}
        for name, values in self.kept.items():
            if name in targets:
                assign(targets[name], partial(_range_of, values.reshape(-1)))


def build_undrawn(build: Callable[[], nn.Module], seed: int) -> UndrawnNetwork | None:
    """Return the network of ``build``, without its weights.

    Their values are those that ``build`` draws from torch's global generator after it was seeded with ``seed``. Returns
    None if they cannot be drawn one tensor at a time. The random state of the process does not change.
    """
    recorder = _DrawRecorder()
    with torch.random.fork_rng(devices=[]), recorder:
        network = build()
    parameters = dict(network.named_parameters())
    places = {p.untyped_storage()._cdata: name for name, p in parameters.items() if p.is_meta}  # noqa: SLF001  no public name
    kept = {name: tensor.detach().clone() for name, tensor in parameters.items() if not tensor.is_meta}
    kept |= {name: tensor.clone() for name, tensor in network.named_buffers()}
    weights = _in_order(recorder.changes, places, torch.Generator().manual_seed(seed))
    drawn = {weight.name for weight in weights}
    if not recorder.is_complete or any(t.is_meta for t in kept.values()) or not drawn.issuperset(places.values()):
        return None
    network.to_empty(device="meta")
    network.tie_weights()  # type: ignore[operator]
    return UndrawnNetwork(network, weights, kept)


def _in_order(
    changes: Sequence[_Change], places: Mapping[int, str], generator: torch.Generator
) -> Sequence[InitialWeight]:
    """Return the draws in their order; of values that are overwritten later the name is empty."""
    following: dict[int, list[_Change]] = {}  # by storage, the changes of a tensor after its last overwriting
    weights: list[InitialWeight] = []
    for change in reversed(changes):
        after = following.setdefault(change.place, [])
        if change.function not in _OVERWRITE:
            after.insert(0, change)
            continue
        is_last = not any(each.function in _OVERWRITE for each in after)
        name = places.get(change.place, "") if is_last else ""
        if name or change.function in _RANDOM:
            chain = (change, *(after if is_last else ()))
            weights.insert(0, InitialWeight(name, change.size, partial(_draw, chain, generator)))
        following[change.place] = [change]
    return weights


def _draw(chain: Sequence[_Change], generator: torch.Generator, values: Tensor) -> None:
    for change in chain:
        change.apply(values, generator)


def _range_of(flat: Tensor, start: int, count: int, _into: Tensor | None = None) -> Tensor:
    return flat[start : start + count]
