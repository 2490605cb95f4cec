"""The optimizers' promises where several processes train one model: collected on each rank that the tests start."""

from __future__ import annotations

import os

import pytest
from safetensors.torch import load_file
from torch import distributed

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.optimizer_factory import OptimizerSpec
from holdfast.adapters.optimizer.pipeline_engine import Parallelism
from holdfast.domain.training.parallel_mesh import ParallelMesh
from holdfast.ports.optimizer import Optimizer
from holdfast.ports.state_store import JoinedPart, StatePart
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, OptimizerContract, files_of
from holdfast.ports.testing.snapshots import BytesPart
from tests.contracts.test_optimizer import TINY
from tests.contracts.test_optimizer import TestAccelerateOptimizer as OnOneDevice

ENGINE, _, PRECISION = os.environ["HOLDFAST_TEST_ENGINE"].partition(" in ")
KIND, _, AVERAGE = ENGINE.partition(" with ")
SHARDING, *AXES = KIND.split("+")
OPTIONS = dict(axis.split("=") for axis in AXES)
SCHEDULE = OPTIONS.pop("schedule", "1f1b")
MESH = {name: int(number) for name, number in OPTIONS.items()}
# a large epsilon keeps Adam from blowing up the rounding of gradients near zero; the average equals the weights
CALM = OptimizerSpec(epsilon=1e-2, ema_decay=1e-9 if AVERAGE else None)


class SharedCapture:
    """A trainable whose ``capture`` gives every rank the files that all make together, as a shared folder would."""

    def __init__(self, trainable):
        self._trainable = trainable

    def __getattr__(self, name):
        return getattr(self._trainable, name)

    def capture(self, **options):
        parts = self._trainable.capture(**options)
        own = {part.name: b"".join(part.chunks()) for part in parts if isinstance(part, StatePart)}
        everyones = [None] * distributed.get_world_size()
        distributed.all_gather_object(everyones, own)
        written = [BytesPart(name, data) for files in everyones for name, data in files.items()]
        files = [files_of([*written, *(part for part in parts if isinstance(part, JoinedPart))])]
        distributed.broadcast_object_list(files, src=0)
        return [BytesPart(name, content) for name, content in files[0].items()]


def parallelism():
    return Parallelism(SHARDING, mesh=ParallelMesh.of(int(os.environ["WORLD_SIZE"]), **MESH), schedule=SCHEDULE)


class OnRanks(Optimizer):
    def __init__(self, optimizer):
        self._optimizer = optimizer

    def prepare(self, model):
        return SharedCapture(self._optimizer.prepare(model))


class TestOnRanks(OnOneDevice, OptimizerContract):
    tolerance = 1e-2 if PRECISION else 2e-5
    precision = PRECISION or "fp32"

    def make_optimizer(self, *, seed=0):
        options = {"device": "cpu", "precision": self.precision, "algorithm": CALM, "seed": seed}
        if not KIND.startswith("zero"):
            return OnRanks(AccelerateOptimizer(parallelism=parallelism(), **options))
        from holdfast.adapters.optimizer.deepspeed import DeepspeedOptimizer

        own = {
            "zero_optimization.stage": int(KIND[4]),
            "zero_optimization.offload_optimizer.device": "cpu" if KIND.endswith("offload") else "none",
            "gradient_clipping": 1.0,
        }
        return OnRanks(DeepspeedOptimizer(own=own, **options))

    def make_model(self, **changes):
        if "pipeline" not in MESH:
            return super().make_model(**changes)
        shape = {name: value for name, value in TINY.items() if name != "model_type"} | {"num_hidden_layers": 4}
        factory = DecoderModelFactory(config=shape | changes)
        factory.defer_weights()
        return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)

    def make_model_with_dropout(self):
        if "pipeline" not in MESH:
            return super().make_model_with_dropout()
        model = self.make_model()
        model.network.model.dropout.p = 0.5
        return model

    def prepare_short_of_memory(self):
        if "pipeline" in MESH:
            pytest.skip("a stage without memory leaves the others waiting, and a step of several ranks is not repeated")
        return super().prepare_short_of_memory()

    def read_weights(self, folder):
        return {name: tensor.numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
