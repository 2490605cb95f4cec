"""The configurations that ship: each is valid by itself, fits its DeepSpeed file and takes the memory it says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import holdfast.configs
from holdfast.adapters.optimizer.deepspeed_config import complete_config, read_config
from holdfast.bootstrap.adapter_choice.torch_adapters import deepspeed_values
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.training.memory_estimate import EngineSetup, LayerShape, ModelShape, Training, estimate_memory

FOLDER = Path(holdfast.configs.__file__).resolve().parent
ROOT = FOLDER.parent
READY = ("rtx4090", "a100x4", "gqa_1b", "gpt2_124m_6gb", "nemotron_h_8b", "h200", "continue_8b_lora")
DEEPSPEED = {"rtx4090": "ds_prototype", "a100x4": "ds_production"}
# as their config.json on the hub says; Nemotron-H's layers are taken for MLPs beside Mamba's inner width
HUB = {
    "Qwen/Qwen3-8B-Base": ModelShape(8_190_735_360, 36, LayerShape(4096, 12288, 4096, 1024), 151_936),
    "nvidia/Nemotron-H-8B-Base-8K": ModelShape(
        8_101_000_000, 52, LayerShape(4096, 21504, 8192, 1024, mlp_tensors=2), 131_072
    ),
    "meta-llama/Llama-3.1-8B": ModelShape(8_030_261_248, 32, LayerShape(4096, 14336, 4096, 1024), 128_256),
}


def load(name):
    return load_settings([FOLDER / f"{name}.yaml"], [], {}).settings


def with_adapters(shape, rank):
    """Return ``shape`` with adapters of ``rank`` beside its linear layers, each as wide as its inputs and outputs."""
    hidden, mlp, heads, shared = (getattr(shape.layer, name) for name in ("hidden", "mlp", "attention", "shared"))
    widths = 2 * (hidden + heads) + 2 * (hidden + shared) + 3 * (hidden + mlp)
    return replace(shape, adapter_parameters=shape.num_layers * rank * widths)


def shape_of(model):
    if model.path is not None:
        return HUB[model.path] if model.lora is None else with_adapters(HUB[model.path], model.lora.rank)
    heads = model.num_attention_heads
    head = model.head_dim or model.hidden_size // heads
    shared = head * (model.num_key_value_heads or heads)
    tensors = 3 if model.gated else 2
    layer = 2 * model.hidden_size * (head * heads + shared) + tensors * model.hidden_size * model.intermediate_size
    tables = model.vocab_size * (1 if model.tie_word_embeddings else 2)
    tables += model.max_position_embeddings if model.positions == "learned" else 0
    widths = LayerShape(
        hidden=model.hidden_size,
        mlp=model.intermediate_size,
        attention=head * heads,
        shared=shared,
        mlp_tensors=4 if model.gated else 2,
        norm_tensors=3 if model.norm == "rmsnorm" else 2,
    )
    num_parameters = model.num_hidden_layers * layer + tables * model.hidden_size  # norms and biases are nothing
    return ModelShape(
        num_parameters, model.num_hidden_layers, widths, model.vocab_size, is_tied=model.tie_word_embeddings
    )


def training_of(settings):
    optimizer, model = settings.optimizer, settings.model
    processes = getattr(settings.distributed, "processes", "auto")
    ranks = 1 if processes == "auto" else processes
    is_deepspeed = optimizer.kind == "deepspeed"
    zero = {}
    if is_deepspeed:
        file = complete_config(read_config(str(ROOT / optimizer.config)), values(optimizer), num_ranks=ranks)
        zero = file["zero_optimization"]
    return Training(
        rows=optimizer.micro_batch,
        length=settings.data.sequence_length,
        engine=EngineSetup(
            "zero" if is_deepspeed else "fsdp2" if ranks > 1 else "single",
            ranks,
            stage=zero.get("stage", 0),
            is_offloaded=zero.get("offload_optimizer", {}).get("device") == "cpu",
            bucket_parameters=zero.get("reduce_bucket_size", 0)
            * (2 if zero.get("overlap_comm") and zero["stage"] < 3 else 1),
            live_parameters=zero.get("stage3_max_live_parameters", 0),
        ),
        precision="bf16",
        checkpoint_every={"none": 0, "full": 1}[model.gradient_checkpointing],
        is_loss_chunked=model.loss != "plain",
        accumulates=optimizer.batch_size > ranks * optimizer.micro_batch,
    )


def values(optimizer):
    return {
        **deepspeed_values(optimizer),
        "bf16.enabled": optimizer.precision == "bf16",
        "optimizer.algorithm": optimizer.algorithm,
    }


@pytest.mark.parametrize("name", READY)
def test_a_ready_configuration_is_valid_by_itself(name):
    """It loads as --config loads it, on top of nothing, in the run folder of its own name, with whole micro-batches."""
    settings = load(name)
    ranks = getattr(settings.distributed, "processes", "auto")
    assert settings.run.name not in ("default", "")
    assert settings.optimizer.batch_size % (settings.optimizer.micro_batch * (1 if ranks == "auto" else ranks)) == 0
    assert settings.run.budget.tokens is not None
    assert settings.run.budget.steps is None


def test_ready_configurations_have_runs_of_their_own():
    """No two of them would share a run folder."""
    names = [load(name).run.name for name in READY]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("name", "file"), DEEPSPEED.items())
def test_the_deepspeed_file_of_a_configuration_agrees_with_it(name, file):
    """The path works from the root of the repository, and no value contradicts the settings."""
    settings = load(name)
    optimizer = settings.optimizer
    assert optimizer.config == f"configs/{file}.json"
    ranks = getattr(settings.distributed, "processes", 1)
    whole = complete_config(
        read_config(str(ROOT / optimizer.config)), values(optimizer), num_ranks=1 if ranks == "auto" else ranks
    )
    assert whole["zero_optimization"]["stage"] == optimizer.stage
    assert whole["zero_optimization"]["offload_optimizer"]["device"] == optimizer.offload
    assert whole["bf16"]["enabled"] is True


def predicted(name, **changes):
    settings = load(name)
    training = replace(training_of(settings), **changes)
    found = estimate_memory(shape_of(settings.model), training)
    return round(found.peak / 2**30, 1), round(found.host * training.engine.num_ranks / 2**30, 1)


@pytest.mark.parametrize("name", READY)
def test_the_documents_tell_the_memory_that_is_predicted(name):
    """docs/memory.md and the comment at the head of the file name the figures of the formula."""
    device, host = predicted(name)
    table = (ROOT / "docs/memory.md").read_text()
    row = re.search(rf"^\| `{name}` \|.*\| ([\d.]+) GiB \| ([\d.]+) GiB \|", table, re.MULTILINE)
    assert (float(row[1]), float(row[2])) == (device, host)
    head = (FOLDER / f"{name}.yaml").read_text().split("\n\n")[0]
    assert f"{device:.1f} GiB" in head
    assert not host or f"{host:.0f} GiB" in head


def test_the_configuration_for_adapters_says_why_it_computes_layers_again():
    """One row of it without gradient checkpointing would take more than the GPU has, as its comment says."""
    device, _ = predicted("continue_8b_lora", rows=1, checkpoint_every=0)
    assert f"{device:.1f} GiB in all" in (FOLDER / "continue_8b_lora.yaml").read_text()
    assert device * 2**30 > 80e9
