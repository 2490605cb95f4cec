"""Kernels that only a GPU has, against what they stand for."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.device.pinned_copies import PinnedCopies
from holdfast.adapters.shared.modeling import attention
from holdfast.adapters.shared.modeling.attention import offer_varlen, packed_arguments
from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
from holdfast.adapters.shared.modeling.document_isolation import probe_isolation
from holdfast.adapters.shared.modeling.loss_selection import choose_loss
from holdfast.adapters.shared.modeling.losses import chunked_cross_entropy, liger_cross_entropy
from holdfast.domain.data.batch import Batch
from holdfast.domain.errors import NonFiniteGradients

pytestmark = pytest.mark.gpu
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


@pytest.fixture
def network():
    """Return a small Llama on the GPU, which shares keys and values among heads."""
    if not torch.cuda.is_available():
        pytest.fail("the marker gpu asks for a CUDA device, and there is none")
    offer_varlen()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).cuda()


def gradients(network, kernel):
    """Return the gradients of a step on packed rows under autocast, each as a share of its largest number."""
    network.set_attn_implementation(kernel)
    network.zero_grad()
    ids = torch.randint(0, 512, (2, 128), generator=torch.Generator().manual_seed(1)).cuda()
    lengths = [[50, 70, 8], [128]]
    positions = torch.stack([torch.cat([torch.arange(each) for each in row]) for row in lengths]).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        logits = network(input_ids=ids, **packed_arguments(network, positions)).logits
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids.flatten()).backward()
    return [each.grad.clone() for each in network.parameters()]


def distance(ours, theirs):
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers' mask and of what torch compiles it with
@pytest.mark.parametrize("kernel", ["varlen", "flex_attention"])
def test_kernels_for_packed_rows_compute_what_masks_do(network, kernel, monkeypatch):
    """In autocast's bf16 a kernel, all documents at once, gives the gradients that sdpa with a mask gives."""

    def slow(*_):
        pytest.fail("documents were attended to one by one")

    monkeypatch.setattr(attention, "_one_by_one", slow)
    reference = gradients(network, "sdpa")
    assert distance(gradients(network, kernel), reference) < 2e-2
    with torch.autocast("cuda", torch.bfloat16):
        assert probe_isolation(network, length=128, vocabulary=512)


def test_ligers_loss_is_the_chunked_one(network):
    """Loss and gradients of liger-kernel are those of the chunked loss, within bf16."""
    pytest.importorskip("liger_kernel")
    found = []
    labels = torch.randint(0, 512, (300,), generator=torch.Generator().manual_seed(1)).cuda()
    labels[::7] = -100
    start = torch.randn(300, 256, generator=torch.Generator().manual_seed(2)).cuda()
    for loss_of in (lambda *of: chunked_cross_entropy(*of, rows_at_once=128), liger_cross_entropy):
        hidden = start.clone().requires_grad_()
        weight = network.lm_head.weight.detach().clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(hidden, weight, None, labels)
        (loss * 0.25).backward()
        found.append((loss.detach(), hidden.grad, weight.grad))
    (ours, *of_ours), (theirs, *of_theirs) = found
    assert abs(float(ours - theirs)) < 1e-3 * float(ours)
    assert distance(of_theirs, of_ours) < 2e-2


@pytest.mark.parametrize("vocabulary", [301, 32_000])
def test_the_kernel_of_the_loss_is_cross_entropy(network, vocabulary):
    """Losses and gradients are torch's on the same logits, whatever the number of columns; without one logits stay."""
    from holdfast.adapters.shared.modeling.cross_entropy_kernel import cross_entropy_in_place

    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(70, vocabulary, generator=generator).mul(4).cuda()
    targets = torch.randint(0, vocabulary, (70,), generator=generator).cuda()
    reference = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(reference, targets, reduction="none")
    expected.sum().backward()
    kept = logits.clone()
    torch.testing.assert_close(cross_entropy_in_place(kept, targets, with_gradient=False), expected.detach())
    assert kept.equal(logits)
    torch.testing.assert_close(cross_entropy_in_place(logits, targets, with_gradient=True), expected.detach())
    torch.testing.assert_close(logits, reference.grad, rtol=1e-4, atol=1e-6)


def packed_batch(lengths=((50, 70, 8), (128,))):
    flat = np.concatenate([np.append(0, np.cumsum(row)[:-1]) + 128 * place for place, row in enumerate(lengths)])
    ids = np.random.default_rng(0).integers(0, 512, (len(lengths), 128))
    return Batch(ids, flat.astype(np.int64), np.full(len(lengths), 128))


def trained_on_a_gpu(network, precision="bf16"):
    network.set_attn_implementation("varlen")
    model = CausalLanguageModel(network)
    choose_loss(model)
    return AccelerateOptimizer(device="cuda", precision=precision).prepare(model)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_step_does_not_wait_for_the_gpu(network):
    """Micro-batches and the update are enqueued without a synchronization; only the reader of the loss waits."""
    trainable, batch = trained_on_a_gpu(network), packed_batch()
    for step in range(1, 4):
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")  # the first step may allocate and compile
        try:
            with trainable.update(step=step, learning_rate=1e-3) as update:
                parts = list(batch.split(1))
                losses = [update.accumulate(part, weight=0.01, last=part is parts[-1]) for part in parts]
                norm = update.apply()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(map(math.isfinite, map(float, [*losses, norm])))


def test_gradients_that_are_not_finite_change_nothing_on_a_gpu(network):
    """The device leaves the step out by itself: weights and optimizer state stay, and the error is raised."""
    trainable, batch = trained_on_a_gpu(network), packed_batch()
    with trainable.update(step=1, learning_rate=1e-3) as update:
        update.accumulate(batch, weight=0.01, last=True)
        update.apply()
    before = [tensor for part in trainable.capture() for tensor in tensors_of(part)]
    with trainable.update(step=2, learning_rate=1e-3) as update:
        update.accumulate(batch, weight=math.inf, last=True)
        with pytest.raises(NonFiniteGradients):
            update.apply()
    after = [tensor for part in trainable.capture() for tensor in tensors_of(part)]
    assert len(before) > 10
    assert all(map(torch.equal, before, after))


def tensors_of(part):
    return getattr(part, "tensors", {}).values()


def test_copies_through_pinned_memory_are_the_arrays():
    """Arrays of several dtypes arrive as they are, also when a buffer is used again and when it has to grow."""
    copies = PinnedCopies(torch.device("cuda"))
    for size in (3, 1, 50, 50, 7):
        arrays = {
            "ids": np.arange(2 * size, dtype=np.int64).reshape(2, size),
            "mask": np.arange(size) % 2 == 0,
            "ends": np.arange(size + 1, dtype=np.int32),
        }
        found = copies.copy(arrays)
        for name, array in arrays.items():
            assert found[name].is_cuda
            assert found[name].cpu().numpy().dtype == array.dtype
            assert np.array_equal(found[name].cpu().numpy(), array)
