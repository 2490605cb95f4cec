"""Kernels that only a GPU has, against what they stand for."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from holdfast.adapters.shared.modeling import attention
from holdfast.adapters.shared.modeling.attention import offer_varlen, packed_arguments
from holdfast.adapters.shared.modeling.document_isolation import probe_isolation
from holdfast.adapters.shared.modeling.losses import chunked_cross_entropy, liger_cross_entropy

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
