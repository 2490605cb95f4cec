"""The optimizers' promises where several processes train one model: collected on each rank that the tests start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import load_file
from test_optimizer import TestAccelerateOptimizer as OnOneDevice
from torch import distributed

from adapters.optimizer.accelerate import AccelerateOptimizer
from adapters.optimizer.algorithm import Algorithm
from ports.optimizer import Optimizer
from ports.state_store import StatePart
from ports.testing.optimizer import OptimizerContract
from ports.testing.optimizer_cases import write

KIND = os.environ["HOLDFAST_TEST_ENGINE"]
CALM = Algorithm(epsilon=1e-2)  # keeps Adam from blowing up the rounding of gradients near zero


@dataclass(frozen=True)
class BytesPart(StatePart):
    name: str
    content: bytes

    def write(self, folder):
        (folder / self.name).write_bytes(self.content)


class SharedCapture:
    """A trainable whose ``capture`` gives every rank the files of the first one, as a shared folder would."""

    def __init__(self, trainable):
        self._trainable = trainable

    def __getattr__(self, name):
        return getattr(self._trainable, name)

    def capture(self):
        parts = self._trainable.capture()
        with TemporaryDirectory() as scratch:
            folder = write(parts, Path(scratch) / "state")
            files = [{path.name: path.read_bytes() for path in folder.iterdir()}]
        distributed.broadcast_object_list(files, src=0)
        return [BytesPart(name, content) for name, content in files[0].items()]


class OnRanks(Optimizer):
    def __init__(self, optimizer):
        self._optimizer = optimizer

    def prepare(self, model):
        return SharedCapture(self._optimizer.prepare(model))


class TestOnRanks(OnOneDevice, OptimizerContract):
    tolerance = 2e-5

    def make_optimizer(self, *, seed=0):
        options = {"device": "cpu", "precision": self.precision, "algorithm": CALM, "seed": seed}
        if not KIND.startswith("zero"):
            return OnRanks(AccelerateOptimizer(sharding=KIND, **options))
        from adapters.optimizer.deepspeed import DeepspeedOptimizer

        own = {
            "zero_optimization.stage": int(KIND[4]),
            "zero_optimization.offload_optimizer.device": "cpu" if KIND.endswith("offload") else "none",
            "gradient_clipping": 1.0,
        }
        return OnRanks(DeepspeedOptimizer(own=own, **options))

    def read_weights(self, folder):
        return {name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
