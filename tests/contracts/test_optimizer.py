from weakref import ref

import numpy as np
import torch
from safetensors.torch import load_file

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.optimizer.optimizer_factory import OptimizerSpec
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, OptimizerContract

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


class Allocated:
    """Stands for memory that a step takes."""


def run_short_of_memory(network):
    """Make ``network`` fail with more than one row, in backward with up to three, in forward with more."""
    allocated = []

    def fail(memory):
        msg = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: 12 bytes"
        raise RuntimeError(msg)

    def after_forward(module, arguments, output):
        if (rows := len(output.last_hidden_state)) > 1:
            memory = Allocated()
            allocated.append(ref(memory))
            if rows > 3 or not torch.is_grad_enabled():
                fail(memory)
            output.last_hidden_state.register_hook(lambda gradient, memory=memory: fail(memory))

    network.base_model.register_forward_hook(after_forward)
    return allocated


class TestMemoryOptimizer(OptimizerContract):
    tolerance = 1e-12
    rate = 1.0

    def make_optimizer(self, *, seed=0):
        return MemoryOptimizer()

    def make_model(self):
        return MemoryModelFactory().build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)

    def make_other_model(self):
        return MemoryModelFactory().build(vocabulary_size=VOCABULARY_SIZE + 1, end_of_text=END_OF_TEXT, seed=0)

    def make_model_with_dropout(self):
        return None

    def prepare_short_of_memory(self):
        return MemoryOptimizer(max_rows=1).prepare(self.make_model()), []

    def read_weights(self, folder):
        return {"logits": np.load(folder / "bigram.npy")[0]}


class TestAccelerateOptimizer(OptimizerContract):
    tolerance = 1e-5
    precision = "fp32"
    ema_decay = None

    def make_optimizer(self, *, seed=0):
        # a large epsilon keeps Adam from blowing up the rounding of gradients near zero
        algorithm = OptimizerSpec(epsilon=1e-2, ema_decay=self.ema_decay)
        return AccelerateOptimizer(device="cpu", precision=self.precision, algorithm=algorithm, seed=seed)

    def make_model(self, **changes):
        factory = HuggingfaceModelFactory(config=TINY | changes)
        return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)

    def make_other_model(self):
        return self.make_model(hidden_size=48)

    def make_model_with_dropout(self):
        return self.make_model(attention_dropout=0.5)

    def prepare_short_of_memory(self):
        model = self.make_model()
        allocated = run_short_of_memory(model.network)
        return self.make_optimizer().prepare(model), allocated

    def read_weights(self, folder):
        return {name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()}


class TestAccelerateOptimizerWithAverage(TestAccelerateOptimizer):
    ema_decay = 1e-9  # so that the average, which is evaluated, equals the weights after each step


class TestAccelerateOptimizerInBfloat16(TestAccelerateOptimizer):
    tolerance = 1e-2
    precision = "bf16"


class TestAccelerateOptimizerInFloat16(TestAccelerateOptimizer):
    tolerance = 1e-2
    precision = "fp16"
