"""Trains on uneven batches with the engine named, as a script, one process a rank; the first one prints the losses."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
from torch import distributed

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.pipeline_engine import Parallelism
from holdfast.adapters.shared.modeling.expert_balance import balance_experts
from holdfast.application.training.step_engine import StepEngine
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import NO_ROW, read_rows
from holdfast.domain.training.parallel_mesh import ParallelMesh
from tests.support.mixtures import MIXTRAL

STEPS, ROWS, LENGTH, VOCABULARY = 30, 16, 32, 97
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
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


QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True}
DECODER = {name: value for name, value in LLAMA.items() if name != "model_type"}
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": LENGTH} | NO_DROPOUT
FACTORIES = {
    "llama": HuggingfaceModelFactory(config=LLAMA),
    "mixtral": HuggingfaceModelFactory(config=MIXTRAL),
    "qwen3": HuggingfaceModelFactory(config=QWEN3),
    "decoder": DecoderModelFactory(config=DECODER),
    "decoder-tied": DecoderModelFactory(config=DECODER | {"tie_word_embeddings": True, "attention_bias": True}),
    "decoder-4": DecoderModelFactory(config=DECODER | {"num_hidden_layers": 4}),
    "gpt2": HuggingfaceModelFactory(config=GPT2),
}


def optimizer_of(engine):
    """Return the optimizer of ``engine`` and the mesh, as in ``fsdp2+tensor=2``."""
    if not engine.startswith("zero"):
        sharding, *axes = engine.split("+")
        options = dict(axis.split("=") for axis in axes)
        schedule = options.pop("schedule", "1f1b")
        mesh = ParallelMesh.of(SIZE, **{name: int(number) for name, number in options.items()})
        parallelism = Parallelism(sharding, mesh=mesh, schedule=schedule)
        return AccelerateOptimizer(device="cpu", precision="fp32", parallelism=parallelism), mesh
    from holdfast.adapters.optimizer.deepspeed import DeepspeedOptimizer

    offload = "cpu" if engine.endswith("offload") else "none"
    own = {
        "zero_optimization.stage": int(engine[4]),
        "zero_optimization.offload_optimizer.device": offload,
        "gradient_clipping": 1.0,
    }
    return DeepspeedOptimizer(device="cpu", precision="fp32", own=own), ParallelMesh.of(SIZE)


def train(engine, accumulation, *, per_rank=False, kind="llama", precision="fp32"):
    """Return the mean loss of each step, and the further figures of the last one.

    ``per_rank`` weighs ranks alike instead of tokens: what must be noticed. ``precision`` is that of the weights: in
    fp64 the sums of several ranks round as those of one, so that a smaller difference can be told.
    """
    if SIZE > 1 and not engine.startswith("zero"):
        FACTORIES[kind].defer_weights()
    model = FACTORIES[kind].build(vocabulary_size=VOCABULARY, end_of_text=VOCABULARY - 1, seed=0)
    model = model.double() if precision == "fp64" else model
    if kind == "mixtral":
        balance_experts(model, 0.1)
    optimizer, mesh = optimizer_of(engine)
    trainable = optimizer.prepare(model)
    rows = ROWS // mesh.data_ranks
    loop = StepEngine(trainable, micro_batch=rows // accumulation)
    losses = []
    for step in range(1, STEPS + 1):
        batch = batch_of(step)
        mine = list(batch.split(rows))[mesh.data_rank(RANK)]
        num_targets = mine.num_targets * mesh.data_ranks if per_rank else batch.num_targets
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


def main(engine, kind="llama", precision="fp32"):
    found = {str(parts): train(engine, parts, kind=kind, precision=precision)[0] for parts in (1, 4)}
    if kind == "mixtral":
        found["figures"] = train(engine, 1, kind=kind)[1]
    elif engine == "ddp":
        found["per rank"] = train(engine, 1, per_rank=True)[0]
    if RANK == 0:
        sys.stdout.write("\n" + json.dumps(found) + "\n")
        sys.stdout.flush()
    if distributed.is_initialized():
        distributed.barrier()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(*sys.argv[1:]))
