"""The balancing loss of mixtures of experts of Hugging Face, and the probe that proves it before the first step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.balance_probe import probe_balance
from holdfast.adapters.shared.modeling.expert_balance import (
    ExpertBalance,
    balance_experts,
    coefficient_for,
    has_experts,
)
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora
from holdfast.adapters.shared.modeling.torch_compile import CompiledLayers
from holdfast.domain.data.batch import Batch
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.optimizer import packed_batch, take_step
from tests.support.mixtures import (
    MIXTRAL,
    MIXTURES,
    lose_the_coefficient,
    mixture,
    report_detached,
    report_probabilities,
)

COEFFICIENT = 0.02


def balanced(config=MIXTRAL, coefficient=COEFFICIENT, **options):
    """Return a model with its balancing loss."""
    model = mixture(config, **options)
    balance_experts(model, coefficient)
    return model


def inputs_of(batch):
    arrays = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "loss_mask": batch.loss_mask}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def gradients(model, batch, rows=1 << 30):
    """Return the gradient of the summed loss of ``batch`` in parts of ``rows`` rows, by parameter, and that loss."""
    model.zero_grad()
    model.balance.forget()
    total = 0.0
    for part in batch.split(rows):
        loss = model(**inputs_of(part))
        loss.backward()
        total += loss.item()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, total


def routers_at_zero(model):
    """Make all experts equally likely for every token."""
    with torch.no_grad():
        for router in model.balance.routers:
            for parameter in router.module.parameters():
                parameter.zero_()


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_probe_accepts_each_shape(kind):
    """The balancing loss of Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE passes the probe, which leaves no trace."""
    model = balanced(MIXTURES[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    probe_balance(model, model.balance, COEFFICIENT)
    assert len(model.balance.routers) == 2
    assert model.balance.coefficient == COEFFICIENT
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("kind", MIXTURES)
def test_uniform_routing_has_the_value_of_the_formula(kind):
    """With equally likely experts the balancing loss is the number of experts of a token."""
    model = balanced(MIXTURES[kind])
    gradients(model, packed_batch())
    assert float(model.balance.mean_loss) != pytest.approx(2, rel=1e-4)
    routers_at_zero(model)
    gradients(model, packed_batch())
    assert float(model.balance.mean_loss) == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_loss_is_cross_entropy_and_the_gradient_has_the_coefficient(kind):
    """The balancing loss changes the gradient of the routers in proportion to its coefficient, and not the loss."""
    model = balanced(MIXTURES[kind], coefficient=0.0)
    plain, loss = gradients(model, packed_batch())
    model.balance.coefficient = 1.0
    once, same = gradients(model, packed_batch())
    model.balance.coefficient = 3.0
    thrice, _ = gradients(model, packed_batch())
    assert same == loss
    names = [name for name in plain if name.endswith("gate.weight") and "shared" not in name]
    assert len(names) == 2
    for name in names:
        share = once[name] - plain[name]
        assert share.norm() > 1e-3
        torch.testing.assert_close(thrice[name] - plain[name], 3 * share, rtol=1e-3, atol=1e-4)


def test_the_micro_batch_does_not_matter():
    """The gradient with the balancing loss is the same for the whole batch and for one row at a time."""
    model = balanced(coefficient=1.0)
    whole, loss = gradients(model, packed_batch())
    loads = {name: float(value) for name, value in model.balance.figures().items()}
    parts, in_parts = gradients(model, packed_batch(), rows=1)
    assert in_parts == pytest.approx(loss, rel=1e-6)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-4)
    assert {name: float(value) for name, value in model.balance.figures().items()} == pytest.approx(loads, rel=1e-5)


def test_padding_does_not_count():
    """Padding behind the tokens of a row changes neither the balancing loss nor the loads."""
    short = packed_batch()
    rows, length = short.input_ids.shape
    longer = np.full((rows, length + 8), 7)
    longer[:, :length] = short.input_ids
    starts = short.starts // length * (length + 8) + short.starts % length
    model = balanced()
    found = []
    for batch in (short, Batch(longer, starts, short.row_lengths)):
        gradients(model, batch)
        found.append({name: float(value) for name, value in model.balance.figures().items()})
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_recomputed_layers_have_the_same_balancing_loss():
    """With all activations recomputed the gradient with the balancing loss is that without, and the probe passes."""
    plain, again = balanced(coefficient=1.0), balanced(coefficient=1.0, gradient_checkpointing="full")
    probe_balance(again, again.balance, 1.0)
    expected, _ = gradients(plain, packed_batch())
    found, _ = gradients(again, packed_batch())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of what torch compiles with
@pytest.mark.slow
@pytest.mark.parametrize("again", ["none", "full"])
def test_compiled_layers_report_their_routers(again):
    """Compiled layers, recomputed or not, have the gradient with the balancing loss that the others have."""
    expected, _ = gradients(balanced(coefficient=1.0), packed_batch())
    model = balanced(coefficient=1.0, gradient_checkpointing=again)
    compiled = CompiledLayers(model.network, "default", "cpu")
    try:
        found, _ = gradients(model, packed_batch())
    finally:
        compiled.close()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_frozen_routers_pass_the_probe():
    """With adapters, which leave the routers frozen, the probe passes and the routers stay frozen."""
    model = mixture(MIXTRAL)
    add_lora(model, LoraPlan(rank=4), seed=0)
    balance = balance_experts(model, COEFFICIENT)
    probe_balance(model, balance, COEFFICIENT)
    assert not any(p.requires_grad for router in balance.routers for p in router.module.parameters())


def test_routers_that_report_probabilities_are_refused(monkeypatch):
    """A softmax that would be taken twice is refused by the probe, which says so."""
    report_probabilities(monkeypatch, MixtralTopKRouter)
    model = balanced()
    with pytest.raises(ConfigurationError, match="softmax would be taken twice"):
        probe_balance(model, model.balance, COEFFICIENT)


def test_a_second_softmax_in_the_loss_is_refused(monkeypatch):
    """A balancing loss that takes the softmax of the probabilities is refused by its value."""
    row_losses = ExpertBalance.row_losses
    monkeypatch.setattr(
        ExpertBalance,
        "row_losses",
        lambda self, logits, is_token: row_losses(self, [each.softmax(-1) for each in logits], is_token),
    )
    model = balanced()
    for router in model.balance.routers:
        torch.nn.init.normal_(router.module.weight, std=1.0)
    with pytest.raises(ConfigurationError, match="where the formula gives"):
        probe_balance(model, model.balance, COEFFICIENT)


def test_a_lost_coefficient_is_refused(monkeypatch):
    """A balancing loss that acts with another coefficient is refused with both numbers."""
    lose_the_coefficient(monkeypatch, ExpertBalance)
    model = balanced()
    with pytest.raises(ConfigurationError, match=r"acts with the coefficient 1 and not 0\.02"):
        probe_balance(model, model.balance, COEFFICIENT)


def test_a_loss_without_a_gradient_is_refused(monkeypatch):
    """Routers whose logits carry no gradient are refused."""
    report_detached(monkeypatch, MixtralTopKRouter)
    model = balanced()
    with pytest.raises(ConfigurationError, match="does not reach the routers' gradient"):
        probe_balance(model, model.balance, COEFFICIENT)


def test_routers_that_fall_silent_end_the_training(monkeypatch):
    """A forward in training in which a router reports nothing raises, in place of training without the loss."""
    model = balanced()
    model.balance.routers[1].module._forward_hooks.clear()
    with pytest.raises(ConfigurationError, match="1 of 2 routers"):
        model(**inputs_of(packed_batch()))


def test_the_coefficient_is_that_of_the_configuration_unless_it_is_set():
    """``auto`` is the model's own ``router_aux_loss_coef``, and a dense model has neither experts nor a coefficient."""
    model = mixture(MIXTRAL | {"router_aux_loss_coef": 0.07})
    assert coefficient_for(model.network, None) == 0.07
    assert coefficient_for(model.network, 0.5) == 0.5
    assert has_experts(model.network)
    dense = mixture({name: value for name, value in MIXTRAL.items() if "experts" not in name} | {"model_type": "llama"})
    assert not has_experts(dense.network)
    assert coefficient_for(dense.network, None) is None


def test_the_figures_are_those_of_one_update():
    """Each update reports its own loads and mean balancing loss, and evaluations are not counted."""
    trainable = AccelerateOptimizer(device="cpu", precision="fp32").prepare(balanced())
    found = []
    for step in (1, 1):
        trainable.evaluate(packed_batch())
        with trainable.update(step=step, learning_rate=0.0) as update:
            update.accumulate(packed_batch(), weight=1.0, last=True)
            trainable.evaluate(packed_batch(seed=5))
            update.apply()
            found.append({name: float(value) for name, value in update.figures().items()})
    assert found[0] == found[1]
    assert found[0].keys() == {"balancing_loss", "expert_load_max", "expert_load_min"}
    assert 0 <= found[0]["expert_load_min"] < 1 < found[0]["expert_load_max"] <= 2


def test_the_loss_balances_the_experts():
    """Experts that are chosen unevenly at first are chosen more evenly after training with the loss than without."""
    loads = {}
    for coefficient in (0.0, 1.0):
        model = balanced(coefficient=coefficient)
        with torch.no_grad():
            for router in model.balance.routers:
                router.module.weight[0] += 0.5
        trainable = AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)
        for step in range(1, 81):
            take_step(trainable, packed_batch(seed=step), step=step, rate=1e-2)
        with trainable.update(step=81, learning_rate=0.0) as update:
            update.accumulate(packed_batch(), weight=1.0, last=True)
            loads[coefficient] = float(update.figures()["expert_load_max"])
    assert loads[1.0] < 1.3
    assert loads[0.0] > 1.7


def test_the_arithmetic_counts_the_experts_of_a_token():
    """A model whose tokens go through half of its experts has the FLOPs of one with half of the experts."""
    whole, half = (
        AccelerateOptimizer(device="cpu", precision="fp32").prepare(mixture(MIXTRAL | {"num_local_experts": number}))
        for number in (4, 2)
    )
    router = 2 * 2 * 32  # the weights that two more experts take in the routers of two layers
    assert whole.hardware.num_parameters > half.hardware.num_parameters
    assert whole.hardware.flops_per_token == half.hardware.flops_per_token + 6 * router
