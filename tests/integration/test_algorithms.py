import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.optimizer_factory import allocate_state, build_optimizer
from holdfast.adapters.shared.tensor_state.optimizer_state import capture_optimizer, restore_optimizer
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, packed_batch, write

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 128,  # matrices of 4096 numbers: bitsandbytes keeps smaller ones in 32 bits
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
# The rate of each, and how far the loss of one batch falls in 20 steps at that rate (in nats, from 5.6).
ALGORITHMS = {"adamw": (0.01, 4.0), "muon": (0.01, 4.0), "lion": (0.003, 2.0), "adamw_8bit": (0.01, 4.0)}
every_algorithm = pytest.mark.parametrize("algorithm", list(ALGORITHMS))


def build(*, seed=0, **changes):
    factory = HuggingfaceModelFactory(config=TINY | changes)
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=seed)


def build_with_state(algorithm, model, **options):
    optimizer = build_optimizer(algorithm, model.network, **options)
    allocate_state(optimizer)
    return optimizer


def names_of(model):
    return {parameter: name for name, parameter in model.network.named_parameters()}


def groups_of(optimizer, model):
    """Return each trained parameter's options by its name."""
    names = names_of(model)
    return {names[parameter]: group for group in optimizer.param_groups for parameter in group["params"]}


def take_step(optimizer, model, rate, *, seed=0):
    batch = packed_batch(seed=seed)
    loss = model(*map(torch.from_numpy, (batch.input_ids, batch.position_ids, batch.loss_mask))) / batch.num_targets
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@every_algorithm
def test_every_algorithm_learns(algorithm):
    """Twenty steps on one batch bring the loss of a tiny Llama down by more than a stated number of nats."""
    rate, fall = ALGORITHMS[algorithm]
    model = build()
    optimizer = build_with_state(algorithm, model)
    losses = [take_step(optimizer, model, rate) for _ in range(21)]
    assert losses[0] - losses[-1] > fall


@every_algorithm
@pytest.mark.parametrize("steps", [0, 3])
def test_every_algorithm_continues_bit_for_bit(algorithm, steps, tmp_path):
    """State captured before the first step or after some, restored into a fresh model, leads to the same bits."""
    rate = ALGORITHMS[algorithm][0]
    model, other = build(), build(seed=1)
    trained, fresh = build_with_state(algorithm, model), build_with_state(algorithm, other)
    for step in range(steps):
        take_step(trained, model, rate, seed=step)
        take_step(fresh, other, rate, seed=9)
    folder = write((*model.capture(), *capture_optimizer(trained, names_of(model), sharded=False)), tmp_path / "a")
    restore_optimizer(fresh, names_of(other), folder)
    other.network.load_state_dict(model.network.state_dict())
    for step in (5, 6):
        assert take_step(trained, model, rate, seed=step) == take_step(fresh, other, rate, seed=step)
    for name, weight in model.network.state_dict().items():
        assert torch.equal(weight, other.network.state_dict()[name]), name


def _described(optimizer, model):
    return {
        name: {key: (value.shape, value.dtype) for key, value in optimizer.state[parameter].items()}
        for parameter, name in names_of(model).items()
    }


@every_algorithm
def test_allocated_state_is_that_of_the_first_step(algorithm):
    """Creating the state ahead changes nothing: not its tensors, and not what the steps do."""
    rate = ALGORITHMS[algorithm][0]
    ahead, late = build(), build()
    allocated, lazy = build_with_state(algorithm, ahead), build_optimizer(algorithm, late.network)
    described = [_described(allocated, ahead)]
    for optimizer, model in ((allocated, ahead), (lazy, late)):
        take_step(optimizer, model, rate)
        described.append(_described(optimizer, model))
    assert described[0] == described[1] == described[2]
    for name, weight in ahead.network.state_dict().items():
        assert torch.equal(weight, late.network.state_dict()[name]), name


@every_algorithm
@pytest.mark.parametrize("decay_embeddings", [True, False])
def test_norms_and_biases_do_not_decay(algorithm, decay_embeddings):
    """What has one dimension has no weight decay; embeddings have it unless told otherwise; all else has it."""
    model = build(attention_bias=True)
    optimizer = build_optimizer(algorithm, model.network, weight_decay=0.5, decay_embeddings=decay_embeddings)
    decays = {name: group["weight_decay"] for name, group in groups_of(optimizer, model).items()}
    assert decays.keys() == set(names_of(model).values())
    for name, decay in decays.items():
        is_spared = "norm" in name or "bias" in name or ("embed" in name and not decay_embeddings)
        assert decay == (0.0 if is_spared else 0.5), name


@every_algorithm
def test_decay_and_rate_shrink_weights_without_gradients(algorithm):
    """A step on zero gradients takes the rate times the decay off matrices and leaves norms as they are."""
    model = build()
    optimizer = build_with_state(algorithm, model, weight_decay=0.5)
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    for name, weight in model.network.state_dict().items():
        torch.testing.assert_close(weight, before[name] * (1.0 if "norm" in name else 0.95), rtol=1e-6, atol=0)


@every_algorithm
def test_frozen_parameters_are_left_out(algorithm):
    """Only what trains has a place in the optimizer, as with adapters on a frozen model; without any it is refused."""
    model = build()
    for name, parameter in model.network.named_parameters():
        parameter.requires_grad_("q_proj" in name)
    optimizer = build_with_state(algorithm, model)
    assert sorted(groups_of(optimizer, model)) == [f"model.layers.{i}.self_attn.q_proj.weight" for i in (0, 1)]
    take_step(optimizer, model, 0.01)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="nothing to train"):
        build_optimizer(algorithm, model.network)


@pytest.mark.parametrize("tied", [False, True])
def test_muon_takes_hidden_matrices_only(tied):
    """Embeddings, the head, norms and biases go to AdamW, everything else to Muon."""
    model = build(attention_bias=True, tie_word_embeddings=tied)
    algorithms = {
        name: group["algorithm"] for name, group in groups_of(build_optimizer("muon", model.network), model).items()
    }
    for name, algorithm in algorithms.items():
        is_other = any(part in name for part in ("embed", "lm_head", "norm", "bias"))
        assert algorithm == ("adamw" if is_other else "muon"), name


def test_muon_moves_matrices_as_far_as_adamw_does():
    """One learning rate fits both: the root mean square of a matrix's step is 0.1 to 0.4 of the rate, as of AdamW's."""
    model = build()
    optimizer = build_with_state("muon", model, weight_decay=0.0)
    before = {name: weight.clone() for name, weight in model.network.state_dict().items()}
    take_step(optimizer, model, 0.01)
    for name, group in groups_of(optimizer, model).items():
        if group["algorithm"] == "muon":
            moved = (model.network.state_dict()[name] - before[name]).square().mean().sqrt()
            assert 0.1 <= float(moved) / 0.01 <= 0.4, name


def test_embeddings_keep_32_bits():
    """Of the 8-bit state the embeddings and what is small have full precision, large matrices a byte a number."""
    model = build()
    optimizer = build_with_state("adamw_8bit", model)
    kinds = {name: optimizer.state[parameter]["state1"].dtype for parameter, name in names_of(model).items()}
    assert kinds["model.embed_tokens.weight"] == kinds["model.norm.weight"] == torch.float32
    assert kinds["lm_head.weight"] == kinds["model.layers.0.mlp.up_proj.weight"] == torch.uint8


def test_small_parameters_have_plain_adamw():
    """Where no parameter is large enough for 8 bits, the steps are those of torch's AdamW within rounding."""
    models = [build(intermediate_size=64, tie_word_embeddings=True) for _ in range(2)]
    for algorithm, model in zip(("adamw", "adamw_8bit"), models, strict=True):
        optimizer = build_with_state(algorithm, model)
        for step in range(3):
            take_step(optimizer, model, 0.01, seed=step)
    for name, weight in models[0].network.state_dict().items():
        torch.testing.assert_close(models[1].network.state_dict()[name], weight, rtol=1e-4, atol=1e-5)


def test_loading_a_state_dict_keeps_muon_one_optimizer():
    """An optimizer whose groups and states are replaced as a whole, as Accelerate does it, steps with the new ones."""
    model, other = build(), build()
    plain, reloaded = build_with_state("muon", model), build_with_state("muon", other)
    for step in range(3):
        take_step(plain, model, 0.01, seed=step)
        take_step(reloaded, other, 0.01, seed=step)
        reloaded.load_state_dict(reloaded.state_dict())
    for name, weight in model.network.state_dict().items():
        assert torch.equal(weight, other.network.state_dict()[name]), name


@pytest.mark.parametrize(("algorithm", "module"), [("lion", "pytorch_optimizer"), ("adamw_8bit", "bitsandbytes")])
def test_a_missing_package_is_named_with_its_extra(algorithm, module, monkeypatch):
    """Without its library an algorithm is refused with what to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "holdfast.adapters.optimizer.adamw_8bit", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"optimizer\.algorithm is {algorithm}.*pip install \"holdfast-lm\["):
        build_optimizer(algorithm, nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("algorithm", "layout"), [("muon", "flat"), ("adamw_8bit", "sharded"), ("adamw_8bit", "flat"), ("sgd", "whole")]
)
def test_what_would_train_wrongly_is_refused(algorithm, layout):
    """An algorithm that does not work on parameters so laid out, or is none, is refused by its name."""
    with pytest.raises(ConfigurationError, match=f"optimizer.algorithm is {algorithm}"):
        build_optimizer(algorithm, nn.Linear(2, 2), layout=layout)


_RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from holdfast.adapters.optimizer.optimizer_factory import allocate_state, build_optimizer

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(31, 64), torch.nn.ReLU(), torch.nn.Linear(64, 40))

rank, place = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
apart = {}
for algorithm in ("adamw", "lion", "muon"):
    networks = whole, sharded = build(), build()
    fully_shard(sharded, mesh=mesh)
    first = [parameter.detach().clone() for parameter in whole.parameters()]
    optimizers = build_optimizer(algorithm, whole), build_optimizer(algorithm, sharded, layout="sharded")
    data = torch.randn(512, 31, generator=torch.Generator().manual_seed(0))
    target = torch.randn(512, 40, generator=torch.Generator().manual_seed(1))
    for network, optimizer in zip(networks, optimizers):
        allocate_state(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        (network(data) - target).square().mean().backward()
        optimizer.step()
    triples = zip(whole.parameters(), sharded.parameters(), first)
    apart[algorithm] = max(((a - b.full_tensor()).norm() / (a - old).norm()).item() for a, b, old in triples)
if rank == 0:
    print(json.dumps(apart))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_sharded_matrices_are_stepped_as_whole_ones(tmp_path):
    """Two ranks with FSDP2 take the step of one process: exactly, and with Muon as near as its bf16 arithmetic is."""
    command = [sys.executable, "-W", "ignore", "-c", _RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    answers = [rank.communicate(timeout=280)[0] for rank in ranks]
    apart = json.loads(answers[0].splitlines()[-1])
    assert apart["adamw"] < 1e-4
    assert apart["lion"] < 1e-4
    assert apart["muon"] < 0.05  # were each rank's rows orthogonalized alone, 0.7
