"""An estimate of the memory for training, from shapes alone; docs/memory.md derives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FP32 = 4
BF16 = 2
LOGITS_BYTES = 64 << 20  # of a chunk of the chunked loss
FEWEST_ROWS = 64


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The widths of a layer: ``attention`` of all its query heads together, ``shared`` of all its key heads.

    ``mlp_tensors`` are those of MLP width that the backward needs, 4 where a gate multiplies, else 2; ``norm_tensors``
    those that a norm leaves for it, 3 of RMSNorm (input, normalized input, output), 2 of LayerNorm.
    """

    hidden: int
    mlp: int
    attention: int
    shared: int
    mlp_tensors: int = 4
    norm_tensors: int = 3


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder that memory depends on; ``num_parameters`` counts tied matrices once.

    ``adapter_parameters`` are those of low-rank adapters, which come on top and are trained in place of all others.
    """

    num_parameters: int
    num_layers: int
    layer: LayerShape
    vocabulary_size: int
    is_tied: bool = False
    adapter_parameters: int = 0

    @property
    def head_parameters(self) -> int:
        """Return the number of parameters of the output matrix."""
        return self.vocabulary_size * self.layer.hidden

    @property
    def layer_parameters(self) -> int:
        """Return the mean number of parameters of a layer."""
        outside = self.head_parameters * (1 if self.is_tied else 2)
        return (self.num_parameters - outside) // self.num_layers


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The placement of weights, gradients and optimizer state; ``stage`` is ZeRO's.

    ``optimizer_bytes`` is the optimizer state in bytes a parameter: 8 for AdamW, 4 for Lion. ``bucket_parameters`` is
    the number of gradients in the buffers of ZeRO's exchange, ``live_parameters`` that of weights gathered in stage 3.
    """

    kind: Literal["single", "ddp", "fsdp2", "zero"] = "single"
    num_ranks: int = 1
    stage: int = 0
    is_offloaded: bool = False
    optimizer_bytes: float = 8
    bucket_parameters: int = 500_000_000
    live_parameters: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Training:
    """The options of training that memory depends on.

    ``rows`` of ``length`` tokens go through the model at once on each rank; ``accumulates`` says that an update has
    several micro-batches, ``is_masked`` that a mask separates the documents of a row (sdpa).
    ``checkpoint_every`` is the N of every:N, 1 for full, 0 for none.
    """

    rows: int
    length: int
    engine: EngineSetup = EngineSetup()
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpoint_every: int = 0
    is_loss_chunked: bool = True
    accumulates: bool = False
    is_masked: bool = False

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of one forward pass."""
        return self.rows * self.length

    @property
    def is_mixed(self) -> bool:
        """Return whether weights are fp32 and computations bf16."""
        return self.precision == "bf16" and self.engine.kind != "zero"

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of a stored weight: ZeRO rounds the model, and its optimizer state includes fp32 weights."""
        return BF16 if self.precision == "bf16" and self.engine.kind == "zero" else FP32

    @property
    def computed_bytes(self) -> int:
        """Return the bytes of a number in matrix products."""
        return BF16 if self.precision == "bf16" else FP32


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Predicted bytes of one rank: those that stay, those of a pass through the model, and the peak of both.

    ``host`` are those of offloaded parts in host memory, of this rank. The framework's own memory is not included: on
    CUDA 0.5 to 1 GiB of context and kernels, and the allocator's fragmentation.
    """

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    activations: float
    loss: float
    peak: float
    host: float


def estimate_memory(shape: ModelShape, training: Training) -> MemoryEstimate:
    """Return the memory of training in bytes; docs/memory.md derives each term and compares it with measurements."""
    states = _states(shape, training)
    kept, layer, working, last_norm = _activations(shape, training)
    loss, of_head = _loss(shape, training)
    steady = states.weights + states.optimizer + states.buffers
    is_whole = training.engine.kind == "single" and not shape.adapter_parameters
    unmade = FP32 * (shape.layer_parameters + shape.head_parameters) if is_whole and not training.accumulates else 0
    recomputed = layer if training.checkpoint_every else 0
    twice = training.weight_bytes * shape.head_parameters if shape.is_tied and not shape.adapter_parameters else 0
    copies = BF16 * shape.num_layers * shape.layer_parameters if _copies_weights(training) else 0
    # a checkpointed layer runs again after the backward of the last norm, when autocast's copies have been freed
    held = recomputed + copies / shape.num_layers if training.checkpoint_every == 1 else recomputed + last_norm + copies
    # autocast stores copies of trained weights only; those of frozen ones live as long as a layer's backward needs them
    stored = 0 if shape.adapter_parameters and training.checkpoint_every == 1 else copies
    begin = (states.gradients if _collects(training) else 0) + kept
    begin += max(stored + last_norm + loss, of_head + held + working + states.exchanged_layer)
    end = states.gradients - unmade + layer + working + twice + states.exchanged_rest
    peak = steady + max(begin, end, states.gradients + twice + states.step)
    return MemoryEstimate(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        buffers=states.buffers + stored,
        activations=kept + recomputed,
        loss=loss,
        peak=peak,
        host=states.host,
    )


@dataclass(frozen=True, slots=True)
class _States:
    weights: float
    gradients: float
    optimizer: float
    buffers: float = 0
    host: float = 0
    step: float = 0
    exchanged_layer: float = 0
    exchanged_rest: float = 0


def _states(shape: ModelShape, training: Training) -> _States:
    size, share = shape.num_parameters, shape.num_parameters / training.engine.num_ranks
    if (trained := shape.adapter_parameters) and training.engine.kind in ("single", "ddp"):
        return _States(FP32 * (size + trained), FP32 * trained, training.engine.optimizer_bytes * trained)
    match training.engine.kind:
        case "zero":
            return _zero_states(shape, training)
        case "fsdp2":
            outside = size - shape.num_layers * shape.layer_parameters
            gathered = training.computed_bytes * (outside + 2 * shape.layer_parameters)
            of_layer, of_rest = ((training.computed_bytes + FP32) * part for part in (shape.layer_parameters, outside))
            states = (FP32 * share, FP32 * share, training.engine.optimizer_bytes * share)
            if training.engine.is_offloaded:
                return _States(0, 0, 0, gathered, sum(states), exchanged_layer=of_layer, exchanged_rest=of_rest)
            return _States(*states, gathered, exchanged_layer=of_layer, exchanged_rest=of_rest)
    return _States(FP32 * size, FP32 * size, training.engine.optimizer_bytes * size)


def _zero_states(shape: ModelShape, training: Training) -> _States:
    size, share, number = shape.num_parameters, shape.num_parameters / training.engine.num_ranks, training.weight_bytes
    optimizer = (FP32 + training.engine.optimizer_bytes) * share  # its own fp32 weights among it
    gradients = number * (size if training.engine.stage == 1 else share)
    weights = number * (share if training.engine.stage == 3 else size)
    buffers = float(number * training.engine.bucket_parameters)
    step = FP32 * share  # the gradient in fp32, which stage 3 does not free
    if training.engine.stage == 3:
        buffers += number * min(training.engine.live_parameters, size)
        optimizer, step = optimizer + step, 0
    if training.engine.is_offloaded:
        return _States(weights, 0, 0, buffers, optimizer + step + number * share)
    return _States(weights, gradients, optimizer, buffers, step=step)


def _activations(shape: ModelShape, training: Training) -> tuple[float, float, float, float]:
    """Return the bytes that all layers and one store for the backward, that its backward adds, and of the last norm."""
    widths, hidden, mlp, number = shape.layer, shape.layer.hidden, shape.layer.mlp, training.computed_bytes
    heads = 2 * widths.attention + 2 * widths.shared
    norms = 2 * widths.norm_tensors * hidden * number
    last_norm = training.num_tokens * widths.norm_tensors * hidden * FP32
    if training.precision == "bf16":  # norms compute in fp32; under autocast each matrix casts its input for itself
        readers = 3 + widths.mlp_tensors // 2 if training.is_mixed else 2
        norms = hidden * (2 * (widths.norm_tensors - 1) * FP32 + readers * BF16)
    mask = training.length * number if training.is_masked else 0
    layer = float(training.num_tokens * (norms + number * (heads + widths.mlp_tensors * mlp) + mask))
    stream = training.num_tokens * hidden * (FP32 if training.is_mixed else number)
    every = training.checkpoint_every
    again = -(-shape.num_layers // every) if every else 0
    kept = again * stream + (shape.num_layers - again) * layer
    return kept, layer, training.num_tokens * 2 * mlp * number + stream, last_norm


def _loss(shape: ModelShape, training: Training) -> tuple[float, float]:
    """Return the peak bytes of the loss, and those that it passes to the backward."""
    tokens, vocabulary = training.num_tokens, shape.vocabulary_size
    of_hidden = tokens * shape.layer.hidden * (FP32 if training.is_mixed else training.computed_bytes)
    of_head = 0 if shape.adapter_parameters else training.weight_bytes * shape.head_parameters
    if not training.is_loss_chunked:
        return 3.0 * FP32 * tokens * vocabulary, of_head + of_hidden
    chunk = min(tokens, max(FEWEST_ROWS, LOGITS_BYTES // (FP32 * vocabulary))) * vocabulary
    scratch = 2.0 * FP32 * chunk
    if training.precision == "bf16":  # the chunk's gradient, its share of the head's and, if that is fp32, the head
        scratch += BF16 * (chunk + (2 if training.is_mixed else 1) * shape.head_parameters)
    gradient = 0 if shape.adapter_parameters else FP32 * shape.head_parameters
    return gradient + of_hidden + scratch, of_head + of_hidden


def _collects(training: Training) -> bool:
    """Return whether gradients are allocated before the backward begins."""
    return training.accumulates or training.engine.kind == "ddp" or training.engine.stage == 3


def _copies_weights(training: Training) -> bool:
    """Return whether autocast stores a bf16 copy of the layers' weights from the forward on."""
    return training.is_mixed and training.engine.kind != "fsdp2"
