"""Direct preference optimization on packed pairs equals a plain implementation with two models."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.modeling.dpo_loss import DpoLoss, disable_dropout
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.application.data.holdout_batches import HoldoutBatches, PairGroups
from holdfast.application.data.reference_column import ReferenceColumn
from holdfast.application.training.micro_batch_search import full_rows, learn_nothing
from holdfast.application.training.reference_pass import ReferencePass
from holdfast.application.training.step_engine import StepEngine
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.packing import BestFitPacking, place_rows
from holdfast.domain.data.preference_pairs import MaskedIds, joined_pair
from holdfast.domain.data.row_index import NO_ROW, read_rows
from holdfast.domain.errors import DataError
from holdfast.domain.training.preference_loss import PreferenceRule
from holdfast.ports.token_source import Tokens
from tests.support.decoder_shapes import LLAMA

VOCABULARY, END, LENGTH = 97, 96, 64
LARGEST = 1e-5
RULE = PreferenceRule(0.3, 0.1)
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
CONFIG = {"model_type": "llama", "num_hidden_layers": 2, **SIZES}


def conversations(number=9, seed=1):
    """Return pairs of conversations with the same prompt: ids and masks of the chosen and of the rejected one."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        prompt, chosen, rejected = (generator.integers(0, END, generator.integers(1, 12)) for _ in range(3))
        found.append(
            [
                MaskedIds(np.concatenate([prompt, reply]), np.arange(len(prompt) + len(reply)) >= len(prompt))
                for reply in (chosen, rejected)
            ]
        )
    return found


def tokens_of(pairs):
    """Return ``pairs`` as the documents of a shard."""
    joined = [joined_pair(*pair) for pair in pairs]
    offsets = np.cumsum([0, *(len(each.ids) for each in joined)], dtype=np.int64)
    ids, mask = (np.concatenate([each[column] for each in joined]) for column in (0, 1))
    return Tokens(ids.astype(np.uint16), offsets, np.arange(len(joined), dtype=np.uint64), mask)


def batch_of(pairs, reference=None, length=LENGTH):
    """Return ``pairs`` as packed rows, and an empty row."""
    joined = [joined_pair(*pair) for pair in pairs]
    ids, masks = ([each[column] for each in joined] for column in (0, 1))
    documents = [each.astype(np.uint16) for each in ids]
    packing = BestFitPacking(length, "drop")
    places = place_rows(documents, packing, masks, holds_pairs=True, reference=reference)
    return read_rows([*places, NO_ROW], length)


def build_one(factory):
    return factory.build(vocabulary_size=VOCABULARY, end_of_text=END, seed=0)


def built(attention="sdpa", *, is_own=False):
    """Return a model that learns preferences, with weights so large that a leak between documents would show."""
    factory = DecoderModelFactory if is_own else HuggingfaceModelFactory
    model = build_one(factory(config=LLAMA if is_own else CONFIG, attention=attention))
    shaken(model, 0)
    model.preference = DpoLoss(RULE)
    return model


def shaken(model, seed):
    """Change all weights of ``model`` a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def plain_log_probability(network, conversation):
    """Return the log-probability of a reply, computed on its conversation alone from all logits."""
    ids = torch.from_numpy(conversation.ids)[None]
    logits = network(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
    each = logits.gather(1, ids[0, 1:, None])[:, 0]
    return each[torch.from_numpy(conversation.loss_mask)[1:]].sum()


def plain_loss(network, reference_network, pairs):
    """Return the summed loss of ``pairs`` as its definition says, with two models, one conversation at a time."""
    total = torch.zeros(())
    for pair in pairs:
        chosen, rejected = (plain_log_probability(network, each) for each in pair)
        with torch.no_grad():
            old_chosen, old_rejected = (plain_log_probability(reference_network, each) for each in pair)
        margin = RULE.beta * ((chosen - rejected) - (old_chosen - old_rejected))
        sides = [torch.nn.functional.logsigmoid(sign * margin) for sign in (1, -1)]
        total = total - (1 - RULE.label_smoothing) * sides[0] - RULE.label_smoothing * sides[1]
    return total


def reference_values(network, pairs):
    with torch.no_grad():
        return np.array([[float(plain_log_probability(network, each)) for each in pair] for pair in pairs])


def gradients_of(model, batch, rows):
    """Return the mean loss of ``batch`` over its pairs, in micro-batches of ``rows``, and the gradients."""
    model.zero_grad()
    total = 0.0
    names = ("input_ids", "position_ids", "loss_mask", "target_pieces", "reference_margins")
    for part in batch.split(rows):
        loss = model(**{name: torch.from_numpy(getattr(part, name)) for name in names})
        (loss / batch.num_terms).backward()
        total += float(loss.detach()) / batch.num_terms
    return total, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("loss", ["plain", "chunked"])
@pytest.mark.parametrize("attention", ["sdpa", "eager", "varlen", "own"])
def test_packed_pairs_learn_what_two_plain_models_say(attention, loss, rows):
    """Loss and gradients are those of a plain two-model implementation, for any attention, loss and micro-batch."""
    is_own = attention == "own"
    reference = built("varlen" if is_own else attention, is_own=is_own).eval()
    model = copy.deepcopy(reference).train()
    shaken(model, 1)
    model.loss = loss
    pairs = conversations()
    twin = HuggingfaceModelFactory(config=CONFIG | LLAMA)
    networks = [build_one(twin).network for _ in range(2)] if is_own else [model.network, reference.network]
    if is_own:
        for network, mine in zip(networks, (model, reference), strict=True):
            network.load_state_dict(mine.network.to_huggingface(mine.network.state_dict()))
    batch = batch_of(pairs, reference_values(networks[1], pairs))
    found, gradients = gradients_of(model, batch, rows)
    networks[0].zero_grad()
    expected = plain_loss(networks[0], networks[1], pairs) / len(pairs)
    expected.backward()
    assert found == pytest.approx(float(expected.detach()), abs=LARGEST)
    if is_own:
        gradients = model.network.to_huggingface({name.removeprefix("network."): g for name, g in gradients.items()})
    wanted = {name: p.grad for name, p in networks[0].named_parameters()}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name.removeprefix("network.")], rtol=0, atol=LARGEST, msg=name)
    assert max(float(gradient.abs().max()) for gradient in gradients.values()) > 1e-2
    figures = model.preference.figures()
    assert 0 < float(figures["reward_accuracy"]) < 1


def trainable_of(model):
    return AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)


def test_a_run_of_the_engine_is_that_of_the_plain_loop():
    """After five steps of the engine the weights are those of a plain loop with AdamW, whatever the micro-batch."""
    pairs, steps = conversations(12), 5
    reference = built().eval()
    values = reference_values(reference.network, pairs)
    ours = []
    for micro_batch in (1, 4):
        model = built()
        engine = StepEngine(trainable_of(model), micro_batch=micro_batch)
        batch = batch_of(pairs, values)
        for step in range(1, steps + 1):
            outcome = engine.step(
                batch,
                step=step,
                learning_rate=1e-3,
                num_targets=batch.num_terms,
                num_tokens=batch.num_tokens,
                should_stop=lambda: False,
                on_applied=lambda *_: None,
            )
        ours.append((outcome.loss, model.network.state_dict(), float(engine.figures["reward_margin"])))
    plain = built().network
    decayed = [p for p in plain.parameters() if p.dim() >= 2]
    others = [p for p in plain.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(steps):
        loss = plain_loss(plain, reference.network, pairs) / len(pairs)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    for found, weights, margin in ours:
        assert found == pytest.approx(float(loss.detach()), abs=LARGEST)
        assert margin > 0.1
        for name, tensor in plain.state_dict().items():
            torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_model_that_is_its_own_reference_has_only_ties(rows):
    """Before its first update a model prefers nothing: the loss is log 2, and half of the pairs count as right."""
    pairs = conversations(12)
    model = built()
    model.preference = DpoLoss(PreferenceRule(0.1))
    evaluated = built().eval()
    batch = batch_of(pairs, reference_values(evaluated.network, pairs))
    loss, _ = gradients_of(model, batch, rows)
    assert loss == pytest.approx(np.log(2), abs=1e-6)
    assert float(model.preference.figures()["reward_accuracy"]) == 0.5


GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
DROPPING = {
    "gpt2": lambda: HuggingfaceModelFactory(config=GPT2),
    "attention": lambda: HuggingfaceModelFactory(config={**CONFIG, "attention_dropout": 0.5}),
    "decoder": lambda: DecoderModelFactory(config=LLAMA, dropout={"attention": 0.5, "residual": 0.3, "embedding": 0.1}),
}


@pytest.mark.parametrize("name", DROPPING)
@pytest.mark.parametrize("loss", ["plain", "chunked"])
def test_a_model_whose_dropout_is_off_trains_as_it_evaluates(name, loss):
    """No module drops anything in training any more, while its configuration stays as it was."""
    torch.manual_seed(0)  # what is dropped may by chance change the loss little
    model = build_one(DROPPING[name]())
    model.loss = loss
    described = model.network.config.to_json_string()
    batch = batch_of(conversations(3))
    inputs = [torch.from_numpy(each) for each in (batch.input_ids, batch.position_ids, batch.loss_mask)]

    def loss_in(mode):
        with torch.no_grad():
            return float(mode()(*inputs))

    assert abs(loss_in(model.train) - loss_in(model.eval)) > 1e-2
    assert disable_dropout(model.network)
    assert loss_in(model.train) == pytest.approx(loss_in(model.eval), abs=1e-3)
    assert not disable_dropout(model.network)
    assert model.network.config.to_json_string() == described


def test_without_pairs_nothing_is_learned():
    """A rank whose rows are all empty takes part in the update with a loss and gradients of 0."""
    model = built()
    empty = read_rows([NO_ROW, NO_ROW], LENGTH)
    with trainable_of(model).update(step=1, learning_rate=1e-3) as update:
        assert float(update.accumulate(empty, weight=1.0, last=True)) == 0.0
        assert all(float(p.grad.abs().max()) == 0.0 for p in model.parameters() if p.grad is not None)
        assert float(update.figures()["reward_accuracy"]) == 0.0


@pytest.mark.parametrize("loss", ["plain", "chunked"])
def test_full_rows_without_pairs_are_tried_and_not_learned(loss):
    """The rows of a trial, which are no preferences, pass forward and backward with gradients of 0."""
    model = built()
    model.loss = loss
    trainable, before = trainable_of(model), copy.deepcopy(model.network.state_dict())
    rows = full_rows(2, LENGTH)
    learn_nothing(trainable, rows, times=2)
    with trainable.update(step=1, learning_rate=0.0) as update:
        assert float(update.accumulate(rows, weight=1.0, last=True)) == 0.0
        assert all(float(p.grad.abs().max()) == 0.0 for p in model.network.parameters())
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def cache_with(tmp_path, pairs, kind="disk"):
    cache = MemoryTokenCache() if kind == "memory" else DiskTokenCache(tmp_path / "tokens", "pairs")
    half = len(pairs) // 2
    for name, some in (("a", pairs[:half]), ("b", pairs[half:])):
        cache.put(name, [tokens_of(some)], {})
    return cache


def column_of(documents=4):
    return ReferenceColumn("key", documents=documents)


def pass_of(model, column, **more):
    return ReferencePass(trainable_of(model), SingleProcessGroup(), column, length=48, rows=2, **more)


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("has_adapters", [False, True])
def test_the_reference_pass_keeps_the_plain_log_probabilities(tmp_path, kind, has_adapters):
    """The column has the log-probability of each reply alone, NaN for a pair longer than a row, also with adapters."""
    pairs = conversations(30)
    pairs[7] = [MaskedIds(np.arange(first, first + 30), np.arange(30) > 5) for first in (0, 1)]
    model = built()
    expected = reference_values(model.network.eval(), pairs)
    model.network.train()
    if has_adapters:
        add_lora(model, LoraPlan(4, 8, 0.0), seed=0)
    cache, column = cache_with(tmp_path, pairs, kind), column_of()
    done = pass_of(model, column).run([cache])
    assert (done.num_pairs, done.num_too_long) == (29, 1)
    found = np.concatenate([column.of(cache, shard) for shard in cache.shards()])
    assert np.isnan(found[7]).all()
    kept = np.delete(np.arange(30), 7)
    assert found[kept] == pytest.approx(expected[kept], abs=1e-4)
    assert pass_of(model, column).run([cache]).num_pairs == 0


def test_a_killed_pass_continues_with_the_next_block(tmp_path):
    """Blocks that are stored are not computed again, and the column is the same to the last bit."""
    pairs, model = conversations(30), built()
    whole, cache = cache_with(tmp_path / "whole", pairs), cache_with(tmp_path / "killed", pairs)
    pass_of(model, column_of()).run([whole])
    seen = []

    def kill(_phase, amount=None, /):
        seen.append(amount.done)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pass_of(model, column_of(), show=kill).run([cache])
    again = cache_with(tmp_path / "killed", pairs)
    assert pass_of(model, column_of()).run([again]).num_pairs == 30 - 3 * 4
    for one, other in zip(whole.shards(), again.shards(), strict=True):
        assert column_of().of(whole, one).tobytes() == column_of().of(again, other).tobytes()


def test_a_reference_model_with_bad_weights_stores_nothing(tmp_path):
    """A log-probability that is NaN would end every run that reads it, so the pass ends with a sentence."""
    model, cache, column = built(), cache_with(tmp_path, conversations(6)), column_of()
    with torch.no_grad():
        next(model.parameters())[:] = float("nan")
    with pytest.raises(DataError, match=r"NaN or infinite: check the weights of model.path"):
        pass_of(model, column).run([cache])
    assert not column.has(cache, cache.shards()[0], 0)


def test_held_out_pairs_that_are_too_long_are_named(tmp_path):
    """The remedy is another length of a row, as there are pairs that are held out."""
    cache = cache_with(tmp_path, conversations(6))
    groups, packing = PairGroups(lambda: [cache], lambda: None, seed=0), BestFitPacking(2, "drop")
    held_out = HoldoutBatches(groups, Holdout(1.0, 0), packing, rows=2, max_tokens=1000, holds_pairs=True)
    with pytest.raises(DataError, match=r"more than 2 tokens and is left out: raise data.sequence_length"):
        _ = held_out.batches


def test_a_column_that_was_not_computed_is_missed(tmp_path):
    """Reading a block that is not stored raises an error that names the remedy, and stores nothing."""
    cache = cache_with(tmp_path, conversations(6))
    [shard, _] = cache.shards()
    with pytest.raises(DataError, match="run the command prepare with the settings of the run"):
        column_of().of(cache, shard)
    assert not column_of().has(cache, shard, 0)
