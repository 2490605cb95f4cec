"""Hugging Face Trainer in bf16: at its defaults, or tuned for a GPU."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any, final

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from typing_extensions import override

from holdfast.configs.sections.optimizer import TorchOptimizerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from benchmarks.train.turns import Turns
    from holdfast.configs.sections.optimizer import OptimizerSettings

_TUNED = {"torch_compile": True, "use_liger_kernel": True, "dataloader_num_workers": 1}


@final
class _Watched(Trainer):  # type: ignore[misc]  # transformers is followed by no type checker
    """A trainer that keeps the losses of a step's micro-batches and their number of tokens that are no padding."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._losses: list[Tensor] = []
        self._tokens = 0

    def take(self) -> tuple[Tensor, int]:
        """Return the loss and the tokens since the last call."""
        found = torch.stack(self._losses).sum(), self._tokens
        self._losses, self._tokens = [], 0
        return found

    @override
    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        mask = inputs.get("attention_mask")
        tokens = inputs["input_ids"].numel() if mask is None else int(mask.sum())
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._losses.append(loss)  # divided by the number of micro-batches already
        self._tokens += tokens
        return loss


@final
class _Ends(TrainerCallback):  # type: ignore[misc]
    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.trainer: _Watched

    @override
    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.turns.begin()

    @override
    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.turns.step_ends(*self.trainer.take())


def train_watched(
    network: Any,
    examples: Sequence[dict[str, Any]],
    turns: Turns,
    *,
    chosen: OptimizerSettings,
    precision: str,
    collate: Callable[[list[Any]], Any] | None = None,
    tuned: bool = False,
) -> None:
    """Train ``network`` on ``examples`` in their order, with the chosen batch and numbers of AdamW.

    ``tuned`` adds what its users add for speed: torch.compile, the kernels of liger-kernel, and loading in another
    process.
    """
    assert isinstance(chosen, TorchOptimizerSettings)
    ends = _Ends(turns)
    micro_batch = chosen.fixed_micro_batch or chosen.num_rows
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=chosen.num_rows // micro_batch,
            learning_rate=chosen.learning_rate,
            lr_scheduler_type="constant",
            weight_decay=chosen.weight_decay,
            adam_beta1=chosen.betas[0],
            adam_beta2=chosen.betas[1],
            num_train_epochs=1,
            bf16=precision == "bf16",
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            train_sampling_strategy="sequential",
            **(_TUNED if tuned else {}),
        )
        dataset: Any = examples
        ends.trainer = _Watched(
            model=network, args=arguments, train_dataset=dataset, data_collator=collate, callbacks=[ends]
        )
        ends.trainer.train()
