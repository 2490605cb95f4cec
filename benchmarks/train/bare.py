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
        self.autocast = torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()

    def step(self, batch: Batch) -> Tensor:
        """Train on ``batch``; return its mean loss, still on the device."""
        ids = torch.from_numpy(batch.input_ids).to(self.device, non_blocking=True)
        positions = torch.from_numpy(batch.position_ids).to(self.device, non_blocking=True)
        mask = torch.from_numpy(batch.loss_mask).to(self.device, non_blocking=True)
        labels = torch.full_like(ids, -100)
        labels[:, :-1] = ids[:, 1:].masked_fill(~mask[:, 1:], -100)
        head = self.network.get_output_embeddings()
        with self.autocast:
            arguments = packed_arguments(self.network, positions)
            hidden = self.network.base_model(input_ids=ids, **arguments).last_hidden_state.flatten(0, 1)
            loss = chunked_cross_entropy(
                hidden, head.weight, head.bias, labels.flatten(), rows_at_once=rows_at_once(head.out_features)
            )
        torch.autograd.backward(loss * (1.0 / batch.num_targets))
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach() / batch.num_targets
