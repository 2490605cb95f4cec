"""The loop that one would write by hand, with the switches that Holdfast takes by default."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

import torch

from holdfast.adapters.shared.modeling.attention import packed_arguments
from holdfast.adapters.shared.modeling.losses import chunked_cross_entropy, rows_at_once
from holdfast.configs.sections.optimizer import TorchOptimizerSettings

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.configs.sections.optimizer import OptimizerSettings
    from holdfast.domain.data.batch import Batch


@final
class BareLoop:
    """Fused AdamW, autocast, clipping and the chunked loss over a Hugging Face ``network``."""

    def __init__(self, network: Any, chosen: OptimizerSettings, *, device: str, precision: str) -> None:
        assert isinstance(chosen, TorchOptimizerSettings)
        self.network = network.to(device).train()
        self.device = device
        self.learning_rate = chosen.learning_rate
        parameters = list(self.network.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": chosen.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=chosen.learning_rate, betas=chosen.betas, eps=chosen.epsilon, fused=True
        )
        self.parameters = parameters
        self.clip = chosen.clip
        self.micro_batch = chosen.fixed_micro_batch
        self.autocast = torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()

    def step(self, batch: Batch) -> Tensor:
        """Train on ``batch``; return its mean loss, still on the device."""
        total = torch.zeros((), device=self.device)
        for part in batch.split(self.micro_batch or batch.num_rows):
            loss = self._summed_loss(part)
            torch.autograd.backward(loss * (1.0 / batch.num_targets))
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total / batch.num_targets

    def _summed_loss(self, part: Batch) -> Tensor:
        ids, positions, mask, ends, places = (
            torch.from_numpy(array).to(self.device, non_blocking=True)
            for array in (part.input_ids, part.position_ids, part.loss_mask, part.document_ends, part.target_places)
        )
        labels = torch.full_like(ids, -100)
        labels[:, :-1] = ids[:, 1:].masked_fill(~mask[:, 1:], -100)
        head = self.network.get_output_embeddings()
        with self.autocast:
            arguments = packed_arguments(self.network, positions, ends)
            hidden = self.network.base_model(input_ids=ids, **arguments).last_hidden_state.flatten(0, 1)
            rows = rows_at_once(head.out_features, self.device)
            return chunked_cross_entropy(
                hidden, head.weight, head.bias, labels.flatten(), rows_at_once=rows, places=places
            )
