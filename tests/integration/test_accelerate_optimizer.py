import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.optimizer_factory import OptimizerSpec
from holdfast.adapters.optimizer.pipeline_engine import Parallelism
from holdfast.adapters.shared.tensor_state.file_parts import write_parts
from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import ConfigurationError, OutOfMemory, StateError, StepTorn
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.testing.optimizer import (
    END_OF_TEXT,
    VOCABULARY_SIZE,
    files_of,
    packed_batch,
    take_step,
    without_targets,
    write,
)

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def build(*, seed=0, **changes):
    factory = HuggingfaceModelFactory(config=TINY | changes)
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=seed)


def prepare(model=None, *, precision="fp32", **options):
    return AccelerateOptimizer(device="cpu", precision=precision, **options).prepare(model or build())


def state_of(trainable, folder):
    """Return weights and optimizer state as captured, by file."""
    write(trainable.capture(), folder)
    return load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")


@pytest.mark.parametrize("clip", [0.01, 1e9])
def test_gradients_are_clipped_to_their_bound(clip, tmp_path):
    """The first moment after one step is that of gradients no longer than the bound, and the norm told is unclipped."""
    trainable = prepare(clip=clip)
    norm = take_step(trainable, packed_batch(), step=1, rate=0.01)[1]
    moments = [tensor for name, tensor in state_of(trainable, tmp_path / "a")[1].items() if name.startswith("exp_avg/")]
    length = float(torch.cat([moment.flatten() for moment in moments]).norm())
    assert norm > 0.01
    assert length == pytest.approx(0.1 * min(norm, clip), rel=1e-3)


def test_offload_without_parts_is_refused():
    """A whole model on one device has no parts to rest in host memory, which is said before anything is trained."""
    with pytest.raises(ConfigurationError, match=r"not sharded: set optimizer\.sharding=fsdp2"):
        prepare(parallelism=Parallelism(offload=True))


def test_matrices_decay_and_norms_do_not(tmp_path):
    """Without gradients a step shrinks matrices by rate times decay and leaves one-dimensional weights alone."""
    trainable = prepare(algorithm=OptimizerSpec(weight_decay=0.5))
    before = state_of(trainable, tmp_path / "before")[0]
    with trainable.update(step=1, learning_rate=0.1) as update:
        update.accumulate(without_targets(packed_batch()), weight=1.0, last=True)
        assert float(update.apply()) == 0.0
    after = state_of(trainable, tmp_path / "after")[0]
    for name, tensor in before.items():
        factor = 1 - 0.1 * 0.5 if tensor.dim() > 1 else 1.0
        torch.testing.assert_close(after[name], tensor * factor, rtol=1e-6, atol=0)


def test_training_is_plain_adamw(tmp_path):
    """Three steps equal torch's own AdamW with its own clipping on the bare model."""
    trainable, model = prepare(clip=0.5), build()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    for step, rate in ((1, 0.01), (2, 0.02), (3, 0.005)):
        batch = packed_batch(seed=step)
        take_step(trainable, batch, step=step, rate=rate)
        arrays = (batch.input_ids, batch.position_ids, batch.loss_mask)
        (model(*map(torch.from_numpy, arrays)) / batch.num_targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        adamw.zero_grad()
    expected = model.network.state_dict()
    for name, tensor in state_of(trainable, tmp_path / "a")[0].items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)


def test_bf16_computes_in_bf16_and_keeps_full_weights(tmp_path):
    """With bf16 the loss is that of half precision, while weights and optimizer state stay fp32."""
    losses = {}
    for precision in ("fp32", "bf16"):
        trainable = prepare(precision=precision)
        losses[precision] = take_step(trainable, packed_batch(), step=1, rate=0.01)[0]
        for tensors in state_of(trainable, tmp_path / precision):
            assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
        assert trainable.hardware.precision == precision
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=1e-2)


def test_trainables_of_two_precisions_live_in_one_process():
    """A later run with another precision does not change an earlier one."""
    alone = prepare(precision="fp32")
    expected = [take_step(alone, packed_batch(seed=step), step=step, rate=0.01) for step in (1, 2)]
    first = prepare(precision="fp32")
    figures = [take_step(first, packed_batch(seed=1), step=1, rate=0.01)]
    take_step(prepare(precision="bf16"), packed_batch(seed=1), step=1, rate=0.01)
    figures.append(take_step(first, packed_batch(seed=2), step=2, rate=0.01))
    assert figures == expected


@pytest.mark.parametrize("copy", [True, False])
def test_a_capture_without_a_copy_takes_no_memory(copy):
    """What is captured without a copy lies where weights and moments do; with one nothing of it does."""
    model = build()
    trainable = prepare(model)
    take_step(trainable, packed_batch(), step=1, rate=0.01)
    parts = {part.name: part for part in trainable.capture(copy=copy)}
    places = {parameter.data_ptr() for parameter in model.network.parameters()}
    weights = {tensor.data_ptr() for tensor in parts["model.safetensors"].tensors.values()}
    assert weights.isdisjoint(places) if copy else weights == places
    before = {name: tensor.clone() for name, tensor in parts["optimizer.safetensors"].tensors.items()}
    take_step(trainable, packed_batch(), step=2, rate=0.01)
    same = [torch.equal(tensor, before[name]) for name, tensor in parts["optimizer.safetensors"].tensors.items()]
    assert all(same) if copy else not any(same)


@pytest.mark.parametrize(
    ("message", "error"), [("a bug", RuntimeError), ("DefaultCPUAllocator: can't allocate memory", StepTorn)]
)
def test_a_step_that_is_cut_in_two_is_not_saved(message, error, tmp_path):
    """An error inside the optimizer's own step is never taken for a shortage, and bars saving until a restore."""
    trainable = prepare()
    before = write(trainable.capture(), tmp_path / "before")

    def fail(*_):
        raise RuntimeError(message)

    hook = register_optimizer_step_post_hook(fail)
    try:
        with pytest.raises(error, match=message):
            take_step(trainable, packed_batch(), step=1, rate=0.01)
    finally:
        hook.remove()
    with pytest.raises(StateError, match="not saved"):
        trainable.capture()
    trainable.restore(before, weights_only=True)
    with pytest.raises(StateError, match="not saved"):
        trainable.capture()
    trainable.restore(before)
    assert files_of(trainable.capture()) == files_of(prepare().capture())


def test_the_state_of_every_parameter_is_there_from_the_start(tmp_path):
    """No memory is first asked for in mid-step: moments of all weights exist, and are zero, before the first step."""
    weights, state = state_of(prepare(), tmp_path / "a")
    assert set(state) == {f"{key}/{name}" for key in ("step", "exp_avg", "exp_avg_sq") for name in weights}
    assert not any(tensor.any() for tensor in state.values())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "optimizer.safetensors"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "optimizer.safetensors"),
    ],
)
def test_a_checkpoint_without_a_whole_optimizer_is_refused(damage, message, tmp_path):
    """Weights are not restored beside an optimizer that cannot be, and alone they still can."""
    trained, fresh = prepare(), prepare()
    take_step(trained, packed_batch(), step=1, rate=0.01)
    folder = write(trained.capture(), tmp_path / "a")
    damage(folder / "optimizer.safetensors")
    before = files_of(fresh.capture())
    with pytest.raises(StateError, match=message):
        fresh.restore(folder)
    assert files_of(fresh.capture()) == before
    fresh.restore(folder, weights_only=True)
    assert files_of(fresh.capture())["model.safetensors"] == files_of(trained.capture())["model.safetensors"]


def test_weights_that_do_not_fit_leave_the_optimizer_alone(tmp_path):
    """A folder whose optimizer fits and whose weights do not is refused before anything is restored."""
    trained, fresh = prepare(), prepare()
    take_step(trained, packed_batch(), step=1, rate=0.01)
    folder = write(trained.capture(), tmp_path / "a")
    write_parts(build(num_hidden_layers=3).capture(), folder)
    before = files_of(fresh.capture())
    with pytest.raises(StateError, match=r"model\.layers\.2"):
        fresh.restore(folder)
    assert files_of(fresh.capture()) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"num_hidden_layers": 3}, "model.layers.2"), ({"intermediate_size": 48}, r"\(48, 32\).*\(64, 32\)")],
)
def test_what_differs_is_said(changes, message, tmp_path):
    """A checkpoint of another model is refused by the name or the shapes of what differs."""
    folder = write(prepare(build(**changes)).capture(), tmp_path / "a")
    with pytest.raises(StateError, match=message):
        prepare().restore(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_the_hardware_counts_parameters_and_operations(tied):
    """Six operations a weight in a matrix product, tied embeddings being one, and attention by the row's length."""
    model = build(tie_word_embeddings=tied)
    hardware = prepare(model, sequence_length=16).hardware
    embedding = VOCABULARY_SIZE * 32
    body, norms = 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64), 5 * 32
    assert hardware.num_parameters == body + norms + embedding * (1 if tied else 2)
    assert hardware.flops_per_token == 6 * (body + embedding) + 12 * 2 * 32 * 16
    assert (hardware.device, hardware.peak_flops) == ("cpu", None)


def test_generating_leaves_torch_s_random_state():
    """Text is drawn from a generator of its own seed."""
    trainable = prepare()
    before = torch.get_rng_state()
    trainable.generate([1], Sampling(max_new_tokens=4, temperature=1.0), end_of_text=END_OF_TEXT)
    assert torch.equal(torch.get_rng_state(), before)


_CHILD = """
import json, resource, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from tests.integration import test_accelerate_optimizer as tests
tests.{work}(*sys.argv[2:])
"""


def run_child(work, *arguments):
    """Run the function ``work`` of this module in a fresh process; return what it prints."""
    child = subprocess.run(
        [sys.executable, "-c", _CHILD.format(work=work), json.dumps(sys.path), *map(str, arguments)],
        env=os.environ | {"PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout.split()


def continue_training(folder):
    """Restore ``folder`` after step 3, take three steps and print a digest of the state."""
    trainable = prepare(build(attention_dropout=0.5))
    trainable.restore(Path(folder))
    for step in (4, 5, 6):
        take_step(trainable, packed_batch(seed=step), step=step, rate=0.01)
    sys.stdout.write(_digest(trainable))


def _digest(trainable):
    hashed = sha256()
    for name, data in sorted(files_of(trainable.capture()).items()):
        hashed.update(name.encode() + data)
    return hashed.hexdigest()


@pytest.mark.slow
def test_another_process_continues_bit_for_bit(tmp_path):
    """A run with dropout that is taken up in a fresh process has the bytes of the one that went on."""
    trainable = prepare(build(attention_dropout=0.5))
    for step in range(1, 7):
        take_step(trainable, packed_batch(seed=step), step=step, rate=0.01)
        if step == 3:
            write(trainable.capture(), tmp_path / "state")
    assert run_child("continue_training", tmp_path / "state")[-1] == _digest(trainable)


def test_the_environment_does_not_scale_gradients(monkeypatch):
    """Accumulation steps that a launcher of Accelerate put into the environment change no gradient."""
    norm = take_step(prepare(), packed_batch(), step=1, rate=0.01)[1]
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    assert take_step(prepare(), packed_batch(), step=1, rate=0.01)[1] == norm


def test_state_of_any_memory_layout_is_saved(tmp_path):
    """A parameter that lies transposed in memory is saved with its optimizer state, and restored."""
    trainables = []
    for seed in (0, 1):
        model = build(seed=seed)
        weight = model.network.model.layers[0].mlp.down_proj.weight
        weight.data = weight.data.t().contiguous().t()
        trainables.append(prepare(model))
    take_step(trainables[0], packed_batch(), step=1, rate=0.01)
    write(trainables[0].capture(), tmp_path / "a")
    trainables[1].restore(tmp_path / "a")
    assert files_of(trainables[1].capture()) == files_of(trainables[0].capture())


def run_out_of_memory(precision):
    """Take a step that needs more address space than there is, then the same in small parts; tell what happened."""
    import resource

    trainable = prepare(build(num_hidden_layers=1), precision=precision)
    batch = packed_batch()
    many = read_rows(place_rows([np.zeros(16, np.int64)] * 16_000, ConcatPacking(16)), 16)
    take_step(trainable, batch, step=1, rate=0.0, rows=1)
    before = files_of(trainable.capture())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 250_000_000, -1))
    try:
        take_step(trainable, many, step=2, rate=0.01)
    except OutOfMemory as error:
        shortage = error
    is_unchanged = files_of(trainable.capture()) == before
    take_step(trainable, many, step=2, rate=0.01, rows=1000)
    is_trained = files_of(trainable.capture()) != before
    sys.stdout.write(f"{type(shortage).__name__} {is_unchanged} {is_trained}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits address space as Linux does")
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_real_shortage_is_survived(precision):
    """A process that truly runs out of memory is told so, changes nothing, and takes the step in parts that fit."""
    # there is room for few of the sixteen parts: nothing of one may stay while the next is computed
    assert run_child("run_out_of_memory", precision)[-3:] == ["OutOfMemory", "True", "True"]


def test_a_run_on_ranks_in_a_process_that_trained_alone_is_refused(monkeypatch):
    """Accelerate opens a group for the first run in a process only: a later run does not train alone unseen."""
    prepare()
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="as one of 1, and the run is on cpu, on 2 ranks: start it in a"):
        prepare()
