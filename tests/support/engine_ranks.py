"""Trains on uneven batches with the engine named, as a script, one process a rank; the first one prints the losses."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
from torch import distributed

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.expert_balance import balance_experts
from holdfast.application.training.step_engine import StepEngine
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import NO_ROW, read_rows
from tests.support.mixtures import MIXTRAL

STEPS, ROWS, LENGTH, VOCABULARY = 30, 16, 32, 97
LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}


def batch_of(step):
    """Return rows of which some are short and some empty, most of them in the later half: another rank's.

    Four tokens in five are trained on, and none of some rows, such as all those of the last rank's last part of four.
    """
    generator = np.random.default_rng(step % 3)
    rows = []
    for row in range(ROWS):
        length = LENGTH if row < ROWS // 2 else int(generator.integers(2, LENGTH))
        document, mask = generator.integers(0, VOCABULARY, length), generator.random(length) < 0.8
        mask[:] &= row not in {1, ROWS - 1, ROWS - 2}
        rows += [NO_ROW] if row % 7 == 6 else place_rows([document], ConcatPacking(LENGTH), [mask])
    return read_rows(rows, LENGTH)


def optimizer_of(engine):
    if not engine.startswith("zero"):
        return AccelerateOptimizer(device="cpu", precision="fp32", sharding=engine)
    from holdfast.adapters.optimizer.deepspeed import DeepspeedOptimizer

    offload = "cpu" if engine.endswith("offload") else "none"
    own = {
        "zero_optimization.stage": int(engine[4]),
        "zero_optimization.offload_optimizer.device": offload,
        "gradient_clipping": 1.0,
    }
    return DeepspeedOptimizer(device="cpu", precision="fp32", own=own)


def train(engine, accumulation, *, per_rank=False, config=LLAMA):
    """Return the mean loss of each step, and the further figures of the last one.

    ``per_rank`` weighs ranks alike instead of tokens: what must be noticed.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    factory = HuggingfaceModelFactory(config=config)
    model = factory.build(vocabulary_size=VOCABULARY, end_of_text=VOCABULARY - 1, seed=0)
    if config is MIXTRAL:
        balance_experts(model, 0.1)
    trainable = optimizer_of(engine).prepare(model)
    loop = StepEngine(trainable, micro_batch=ROWS // size // accumulation)
    losses = []
    for step in range(1, STEPS + 1):
        batch = batch_of(step)
        mine = list(batch.split(ROWS // size))[rank]
        num_targets = mine.num_targets * size if per_rank else batch.num_targets
        outcome = loop.step(
            mine,
            step=step,
            learning_rate=1e-3,
            num_targets=num_targets,
            num_tokens=batch.num_tokens,
            should_stop=lambda: False,
            on_applied=lambda *_: None,
        )
        losses.append(sum(map(float, outcome.losses)) / batch.num_targets)
    return losses, {name: float(value) for name, value in loop.figures.items()}


def main(engine, kind="llama"):
    config = MIXTRAL if kind == "mixtral" else LLAMA
    found = {str(accumulation): train(engine, accumulation, config=config)[0] for accumulation in (1, 4)}
    if kind == "mixtral":
        found["figures"] = train(engine, 1, config=config)[1]
    elif engine == "ddp":
        found["per rank"] = train(engine, 1, per_rank=True)[0]
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write("\n" + json.dumps(found) + "\n")
        sys.stdout.flush()
    if distributed.is_initialized():
        distributed.barrier()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(*sys.argv[1:]))
