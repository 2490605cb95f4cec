"""A torch language model that knows its own loss: what torch model factories build and torch optimizers train."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adapters.shared.state_parts import TensorsPart, TextPart
from domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from domain.sampling import Sampling
    from ports.state_store import StatePart

MODEL_FILE = "model.safetensors"
_IGNORED = -100  # the label that ``cross_entropy`` leaves out


@final
class CausalLanguageModel(nn.Module):
    """A Hugging Face causal model whose forward is the summed loss of a packed batch.

    The network gets position ids that restart with each document, no attention mask and ``use_cache=False``: only
    then does transformers keep packed documents from attending to each other.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, position_ids: Tensor, loss_mask: Tensor) -> Tensor:
        """Return the summed loss in nats, fp32, of the targets; ids int64 and mask bool, all (rows, length)."""
        logits = self.network(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
        labels = torch.full_like(input_ids, _IGNORED)
        labels[:, :-1] = input_ids[:, 1:].masked_fill(~loss_mask[:, 1:], _IGNORED)
        return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=_IGNORED, reduction="sum")

    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        """Return new ids behind ``prompt``, as ``Trainable.generate`` promises; a long prompt loses its beginning.

        Raises ``ConfigurationError`` if the model has no position left for new tokens.
        """
        room = self._room_for_prompt(sampling.max_new_tokens)
        ids = torch.tensor([list(prompt)[-room:]], device=self.network.device)
        chosen: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            chosen = {"do_sample": True, "temperature": sampling.temperature}
            chosen |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
        network = self.network.eval()
        try:
            with torch.random.fork_rng(), torch.no_grad():
                torch.manual_seed(sampling.seed)
                out = network.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=sampling.max_new_tokens,
                    eos_token_id=end_of_text,
                    pad_token_id=end_of_text,
                    **chosen,
                )
        finally:
            network.train()
        new: list[int] = out[0, ids.shape[1] :].tolist()
        return new[: new.index(end_of_text)] if end_of_text in new else new

    def capture(self) -> Sequence[StatePart]:
        """Return weights and description by value, as files that ``from_pretrained`` loads."""
        weights = {
            name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in self._own_tensors().items()
        }
        config = self.network.config
        parts: list[StatePart] = [
            TensorsPart(MODEL_FILE, weights),
            TextPart("config.json", config.to_json_string()),
        ]
        if self.network.generation_config is not None:
            parts.append(TextPart("generation_config.json", self.network.generation_config.to_json_string()))
        return parts

    def check_fits(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ``StateError`` if ``tensors`` are not those of this network."""
        own = self._own_tensors()
        if own.keys() != tensors.keys():
            differing = sorted(own.keys() ^ tensors.keys())
            msg = f"the checkpoint's weights are of another model: {differing[0]} and {len(differing) - 1} more differ"
            raise StateError(msg)
        for name, tensor in own.items():
            if tensor.shape != tensors[name].shape:
                msg = f"{name} is {tuple(tensors[name].shape)} in the checkpoint and {tuple(tensor.shape)} in the model"
                raise StateError(msg)

    @torch.no_grad()
    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy ``tensors``, as ``capture`` wrote them, into the network; raises ``StateError`` if they do not fit."""
        self.check_fits(tensors)
        for name, tensor in self._own_tensors().items():
            tensor.copy_(tensors[name])

    def _room_for_prompt(self, max_new_tokens: int) -> int:
        positions = getattr(self.network.config, "max_position_embeddings", None)
        if positions is None:
            return sys.maxsize
        if positions <= max_new_tokens:
            msg = f"the model has {positions} positions: ask for fewer than {positions} new tokens"
            raise ConfigurationError(msg)
        return int(positions) - max_new_tokens

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return each tensor once: tied weights stand under their first name, as Hugging Face saves them."""
        seen: dict[tuple[int, torch.Size], str] = {}
        for name, tensor in self.network.state_dict(keep_vars=True).items():
            seen.setdefault((tensor.data_ptr(), tensor.shape), name)
        names = set(seen.values())
        return {name: tensor for name, tensor in self.network.state_dict().items() if name in names}
