"""The most memory that torch's allocator had handed out at once while a small model trained, on the CPU."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import numpy as np
from torch.profiler import ProfilerActivity, profile

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora
from holdfast.adapters.shared.modeling.loss_selection import choose_loss
from holdfast.domain.data.batch import Batch
from holdfast.domain.training.memory_estimate import LayerShape, ModelShape, Training, estimate_memory

FACTORIES = {"decoder": DecoderModelFactory, "huggingface": HuggingfaceModelFactory}


def measure(case):
    """Return the bytes that two steps of ``case`` took at their worst, and those that were predicted."""
    with peak_memory() as found:
        shape = train(case)
    return found[0], estimate_memory(shape, Training(**case["training"])).peak


@contextmanager
def peak_memory():
    """Count every block that torch's CPU allocator hands out and takes back; give the peak once it is over."""
    found = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    events = (event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    found.append(int(np.cumsum(changes).max()))


def train(case):
    model = FACTORIES[case["kind"]](
        config=case["config"], gradient_checkpointing=case.get("gradient_checkpointing", "none")
    ).build(vocabulary_size=case["vocabulary"], end_of_text=0, seed=0)
    training = Training(**case["training"])
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if "lora" in case:
        add_lora(model, LoraPlan(**case["lora"]), seed=0)
    choose_loss(model, "chunked" if training.is_loss_chunked else "plain")
    shape = shape_of(model, case, num_parameters)
    trainable = AccelerateOptimizer(device="cpu", precision=training.precision).prepare(model)
    parts = 2 if training.accumulates else 1
    generator = np.random.default_rng(0)
    for step in (1, 2):
        with trainable.update(step=step, learning_rate=1e-3) as update:
            for part in range(parts):
                batch = a_batch(generator, training, case["vocabulary"])
                update.accumulate(batch, weight=1 / (parts * training.num_tokens), last=part == parts - 1)
            update.apply()
    return shape


def a_batch(generator, training, vocabulary):
    ids = generator.integers(1, vocabulary, (training.rows, training.length))
    apart = training.length // 2 if training.is_masked else training.length
    lengths = np.full(training.rows, training.length, np.int64)
    return Batch(ids, np.arange(0, ids.size, apart, dtype=np.int64), lengths)


def shape_of(model, case, num_parameters):
    config = case["config"]
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    layer = LayerShape(
        hidden=hidden,
        mlp=config["intermediate_size"],
        attention=hidden,
        shared=hidden // heads * config["num_key_value_heads"],
        mlp_tensors=4 if config.get("gated", True) else 2,
        norm_tensors=2 if config.get("norm") == "layernorm" else 3,
    )
    return ModelShape(
        num_parameters,
        config["num_hidden_layers"],
        layer,
        case["vocabulary"],
        is_tied=config["tie_word_embeddings"],
        adapter_parameters=sum(parameter.numel() for parameter in model.parameters()) - num_parameters,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
