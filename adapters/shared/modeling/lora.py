"""Low-rank adapters (LoRA; Hu et al., arXiv 2106.09685), trained and saved in place of the whole model."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from holdfast.adapters.shared.modeling.network_layers import linear_layers
from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE, TextPart
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from peft import LoraConfig

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.ports.state_store import StatePart

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_DESCRIPTION = "adapter_config.json"

_ADAPTER = "default"
_PREFIX = "base_model.model."  # PEFT's prefix for the wrapped model
_BASE = "base_model.blake3"


@final
@dataclass(frozen=True, slots=True)
class LoraPlan:
    """The adapters to add: ``target_modules`` are linear layers by name or end of name; None means all but the head.

    An adapter's output is scaled by ``alpha / rank``. ``quantize`` stores the model's own linear layers in nf4 of
    bitsandbytes (QLoRA; Dettmers et al., arXiv 2305.14314).
    """

    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: Sequence[str] | None = None
    quantize: Literal["none", "4bit"] = "none"


@final
class LoraAdapters:
    """The adapters of one network: their tensors under PEFT's names, and the files that PEFT loads.

    ``base`` is the hash of the weights that they belong to.
    """

    def __init__(self, config: LoraConfig, base: str) -> None:
        self._config = config
        self.base = base
        self._base = torch.tensor(list(bytes.fromhex(base)), dtype=torch.uint8)

    @property
    def base_path(self) -> str | None:
        """Return the folder or hub name of the base weights, None if they were drawn."""
        return self._config.base_model_name_or_path

    def tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the adapters' parameters by PEFT's names, in their own shapes and dtypes."""
        return {
            _PREFIX + name.replace(f".{_ADAPTER}.", "."): parameter
            for name, parameter in network.named_parameters()
            if ".lora_" in name
        }

    def files(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the file to resume from and the file that PEFT loads.

        The first also has the hash of the base weights, uint8 (32,).
        """
        return {MODEL_FILE: {_BASE: self._base}, ADAPTER_FILE: {}}

    def description(self, base: str | None = None) -> StatePart:
        """Return the configuration that PEFT loads with the tensors; it names ``base``, or by default ``base_path``."""
        fields: dict[str, Any] = self._config.to_dict()  # type: ignore[no-untyped-call]
        fields["base_model_name_or_path"] = base or self.base_path
        fields = {name: sorted(value) if isinstance(value, set) else value for name, value in fields.items()}
        fields["inference_mode"] = True  # as PEFT saves it, for inference
        return TextPart(ADAPTER_DESCRIPTION, json.dumps(fields, indent=2, sort_keys=True) + "\n")

    def exported(self, tensors: Mapping[str, Tensor], base: str) -> Sequence[StatePart]:
        """Return the two files that PEFT loads, with copies of ``tensors`` in their shapes and dtypes.

        ``tensors`` come from the method ``tensors``, and may be on any device. ``base`` is the folder or hub name of
        the base weights that the files name.
        """
        by_value = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return TensorsPart(ADAPTER_FILE, by_value), self.description(base)

    def read(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the adapters among a checkpoint's ``tensors``, shapes and dtypes unchanged.

        Raises ``StateError`` if there are none or if they belong to other base weights.
        """
        renamed = dict(tensors)
        base = renamed.pop(_BASE, None)
        if base is None:
            msg = "the checkpoint holds no adapters: it comes from a run without model.lora"
            raise StateError(msg)
        if not torch.equal(base, self._base):
            msg = (
                f"the checkpoint's adapters belong to other base weights, not those of {self.base_path or 'this model'}"
                ": name the model of their run, by model.path to train and by --base PATH in other commands"
            )
            raise StateError(msg)
        return renamed


def add_lora(
    model: CausalLanguageModel, plan: LoraPlan, *, seed: int, path: str | None = None, revision: str | None = None
) -> None:
    """Freeze ``model`` and give it new adapters, drawn by ``seed``; ``path`` and ``revision`` name its weights.

    The adapters do not change the model's output until they are trained. Raises ``ConfigurationError`` if a target or a
    package is missing.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        msg = 'model.lora needs another package: pip install "holdfast-lm[lora]"'
        raise ConfigurationError(msg) from error
    network: Any = model.network
    linear = linear_layers(network)
    targets = _targets(linear, plan.target_modules)
    base = fingerprint(network)
    if plan.quantize == "4bit":
        _quantize(network, linear)
    fields: dict[str, Any] = {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": path,
        "revision": revision,
        "r": plan.rank,
        "lora_alpha": plan.alpha,
        "lora_dropout": plan.dropout,
        "target_modules": _shortened(network, targets),
        "fan_in_fan_out": any(isinstance(linear[name], Conv1D) for name in targets),
    }
    config = LoraConfig(**fields)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")  # PEFT sets it by layer
        torch.manual_seed(seed)
        inject_adapter_in_model(config, network, adapter_name=_ADAPTER)
    model.adapters = LoraAdapters(config, base)


def merge_lora(model: CausalLanguageModel) -> None:
    """Make ``model`` a plain one that computes the same: adapters added to its weights, nf4 turned into fp32."""
    from peft.tuners.lora import LoraLayer

    network: Any = model.network
    for name, module in list(network.named_modules()):
        if isinstance(module, LoraLayer):
            plain = _plain(module.get_base_layer())
            adapted: Any = module  # all its kinds have these attributes
            plain.weight.data += adapted.get_delta_weight(_ADAPTER).to(plain.weight.dtype)
            network.set_submodule(name, plain)
        elif _is_quantized(module) and not name.endswith(".base_layer"):
            network.set_submodule(name, _plain(module))
    model.adapters = None


def fingerprint(network: nn.Module) -> str:
    """Return the BLAKE3 hash, hex, of the names and bytes of all weights of ``network``."""
    digest = blake3(max_threads=blake3.AUTO)
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _targets(linear: Mapping[str, nn.Module], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        return list(linear)
    for end in wanted:
        if not any(_is_named(name, end) for name in linear):
            names = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            msg = f"model.lora.target_modules has {end}, but no adaptable linear layer ends with it: try {names}"
            raise ConfigurationError(msg)
    return [name for name in linear if any(_is_named(name, end) for end in wanted)]


def _is_named(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _shortened(network: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the last parts of the names ``targets`` if they select exactly these modules, else ``targets``."""
    words = {name.rpartition(".")[2] for name in targets}
    meant = {name for name, _ in network.named_modules() if name.rpartition(".")[2] in words}
    return sorted(words) if meant == set(targets) else sorted(targets)


def _quantize(network: nn.Module, linear: Mapping[str, nn.Module]) -> None:
    try:
        from holdfast.adapters.shared.modeling.quantization import quantized
    except ImportError as error:
        msg = 'model.lora.quantize is 4bit, which needs another package: pip install "holdfast-lm[bnb]"'
        raise ConfigurationError(msg) from error
    plain = {name: module for name, module in linear.items() if type(module) is nn.Linear}
    if not plain:
        msg = (
            f"model.lora.quantize is 4bit, but {type(network).__name__} has no layers of torch's Linear: set it to none"
        )
        raise ConfigurationError(msg)
    for name, module in plain.items():
        network.set_submodule(name, quantized(module))


def _is_quantized(module: nn.Module) -> bool:
    return hasattr(getattr(module, "weight", None), "quant_state")


def _plain(layer: Any) -> Any:
    if not _is_quantized(layer):
        return layer
    from holdfast.adapters.shared.modeling.quantization import dequantized

    return dequantized(layer)
