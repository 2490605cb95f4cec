from itertools import pairwise

import pytest
import torch

from holdfast.adapters.shared.decoder.decoder_attention import ATTENTIONS, Attention, document_numbers
from tests.support.decoder_shapes import GPT2, LLAMA, SHAPES, build, documents_of, logits_of, loss_of, rows_of, shaken

LENGTHS = (7, 12, 2, 21, 1, 5)
each_attention = pytest.mark.parametrize("attention", ATTENTIONS)
each_shape = pytest.mark.parametrize("name", ["llama", "llama3-scaling", "gpt2", "own"])


@each_attention
@each_shape
@pytest.mark.parametrize("length", [48, 16, 53], ids=["one-row", "rows", "padded"])
def test_packed_documents_do_not_see_each_other(attention, name, length):
    """A packed batch's logits, loss and gradients are those of its documents alone."""
    model = shaken(build(SHAPES[name], attention=attention))
    packed = rows_of(documents_of(*LENGTHS), length)
    pieces = [piece for row in _pieces(packed) for piece in row]
    alone = [rows_of([piece], len(piece)) for piece in pieces]
    expected = torch.cat([logits_of(model.network, batch)[0] for batch in alone])
    found = logits_of(model.network, packed).flatten(0, 1)[: len(expected)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    gradients = []
    for batches in ([packed], alone):
        model.zero_grad()
        loss = sum(loss_of(model, batch) for batch in batches)
        loss.backward()
        gradients.append((loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-4)


def _pieces(batch):
    """Return the documents of each row, cut where rows end."""
    for ids, positions, document in zip(batch.input_ids, batch.position_ids, batch.document_ids, strict=True):
        length = int((document >= 0).sum())
        begins = [place for place in range(length) if positions[place] == 0]
        yield [ids[begin:end] for begin, end in pairwise([*begins, length])]


@each_attention
@each_shape
def test_a_document_s_tokens_see_those_before_them(attention, name):
    """Within a document a token changes what comes after it and nothing before."""
    network = shaken(build(SHAPES[name], attention=attention)).network
    batch = rows_of(documents_of(10, 10), 20)
    before = logits_of(network, batch)[0]
    batch.input_ids[0, 12] ^= 1
    changed = (logits_of(network, batch)[0] - before).abs().amax(dim=1) > 1e-6
    assert changed.tolist() == [False] * 12 + [True] * 8


@each_attention
@each_shape
def test_whoever_knows_that_rows_are_one_document_may_say_so(attention, name):
    """Rows of one document give the same logits whether that is said, found out or not assumed."""
    network = shaken(build(SHAPES[name], attention=attention)).network
    batch = rows_of(documents_of(24, 24), 24)
    logits = [logits_of(network, batch, is_packed=is_packed) for is_packed in (None, True, False)]
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits[2], logits[0], rtol=0, atol=1e-5)


def test_rows_of_one_document_need_no_mask():
    """Where each row is one document, or is said to be, there is no mask, for which torch has its fastest kernel."""
    packed, single = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    sdpa = ATTENTIONS["sdpa"]
    assert sdpa.separate(single, is_packed=None) is None
    assert sdpa.separate(packed, is_packed=False) is None
    assert sdpa.separate(packed, is_packed=None).sum() == sdpa.separate(packed, is_packed=True).sum() == 6


def test_documents_are_told_apart_once_a_forward_pass():
    """What an attention needs to know of documents is made once, and each layer gets that very object."""
    made, seen = [], []

    class Watching(Attention):
        def separate(self, position_ids, *, is_packed):
            made.append(object())
            return made[-1]

        def attend(self, query, key, value, documents, *, dropout):
            seen.append(documents)
            return query

    network = build(LLAMA).network
    network.model._attention = Watching()
    logits_of(network, rows_of(documents_of(3, 5), 8))
    assert seen == made * LLAMA["num_hidden_layers"]


def test_document_numbers_rise_with_each_position_zero():
    """Tokens of a document share a number that no other document of the row has."""
    positions = torch.tensor([[0, 1, 2, 0, 0, 1], [3, 4, 0, 1, 0, 0]])
    assert document_numbers(positions).tolist() == [[1, 1, 1, 2, 3, 3], [0, 0, 1, 1, 2, 3]]


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_layers_computed_again_change_nothing(config, every):
    """Loss and gradients are the same, bit for bit, whichever layers keep only their input, dropout included."""
    model = shaken(build(config | {"num_hidden_layers": 3}, dropout={"attention": 0.2, "residual": 0.2}))
    batch = rows_of(documents_of(*LENGTHS), 24)
    results = []
    for each in (0, every):
        model.network.gradient_checkpointing_every = each
        model.zero_grad()
        torch.manual_seed(0)
        loss = loss_of(model, batch)
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.parametrize(("every", "again"), [(0, [0, 0, 0]), (1, [1, 1, 1]), (2, [1, 0, 1]), (3, [1, 0, 0])])
def test_every_nth_layer_is_computed_again(every, again):
    """Of the layers each n-th, from the first on, runs a second time in the backward pass; in evaluation none does."""
    model = build(LLAMA | {"num_hidden_layers": 3})
    model.network.gradient_checkpointing_every = every
    runs = [0, 0, 0]
    for number, layer in enumerate(model.network.base_model.layers):
        layer.self_attn.q_proj.register_forward_hook(
            lambda *_, number=number: runs.__setitem__(number, runs[number] + 1)
        )
    loss_of(model, rows_of(documents_of(8), 8)).backward()
    assert runs == [1 + more for more in again]
    model.eval()
    loss_of(model, rows_of(documents_of(8), 8)).backward()
    assert runs == [2 + more for more in again]


@pytest.mark.parametrize("place", ["embedding", "attention", "residual"])
def test_dropout_is_for_training(place):
    """Each share drops something in training, differently each time, and nothing in evaluation."""
    network = shaken(build(GPT2, dropout={place: 0.3})).network
    batch = rows_of(documents_of(24), 24)
    assert not torch.equal(logits_of(network, batch), logits_of(network, batch))
    plain = shaken(build(GPT2)).network
    assert torch.equal(logits_of(plain, batch), logits_of(plain, batch))
    assert torch.equal(logits_of(network.eval(), batch), logits_of(plain, batch))


@pytest.mark.parametrize("silent", ["o_proj", "down_proj"])
def test_both_residual_branches_drop(silent):
    """What the MLP adds is dropped as well as what attention adds."""
    network = shaken(build(GPT2, dropout={"residual": 0.3})).network
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if silent in name:
                parameter.zero_()
    batch = rows_of(documents_of(24), 24)
    assert not torch.equal(logits_of(network, batch), logits_of(network, batch))


def test_positions_are_not_rounded_in_half_precision():
    """In bf16 the place of a token far behind is still told from its neighbour's: rotations stay fp32."""
    config = LLAMA | {"max_position_embeddings": 4096, "num_hidden_layers": 1}
    network = shaken(build(config)).network.eval().bfloat16()
    ids = torch.from_numpy(documents_of(6)[0])[None]
    near, far = torch.arange(6)[None], torch.arange(3001, 3007)[None]
    with torch.no_grad():
        here, there = (network(ids, positions, is_packed=False).logits.float() for positions in (near, far))
    assert (here - there).abs().max() < 0.1 * here.abs().max()  # attention depends on distances alone
