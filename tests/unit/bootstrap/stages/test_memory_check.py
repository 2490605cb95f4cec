"""A model that cannot be trained in the memory that is there is refused, and one that might fit never is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.shared.device.memory_gauge import host_room
from holdfast.bootstrap.stages.choose.memory_check import refuse_from_settings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import LayerShape, ModelShape, Training, estimate_memory
from holdfast.domain.training.memory_fit import MemoryCapacity, MemoryPlan, SizedModel, refusal
from holdfast.domain.training.parameter_count import fewest_parameters

GB = 10**9
SMALL = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
LLAMA = fewest_parameters({**SMALL, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256})
assert LLAMA is not None  # 1.2 billion parameters


def room(num_bytes):
    return MemoryCapacity(num_bytes, f"there are {num_bytes / GB:.1f} GB")


@given(st.integers(10**6, 10**11), st.integers(10**9, 10**12), st.sampled_from([2, 4, 8]))
def test_what_the_formula_has_room_for_is_never_refused(size, there, of_optimizer):
    """If the whole estimate of docs/memory.md fits, with all that a pass takes, nothing is refused."""
    layers = LayerShape(512, 2048, 512, 512)
    shape = ModelShape(size, 4, layers, 1000, is_tied=True)
    estimate = estimate_memory(shape, Training(rows=1, length=128))
    whole = estimate.peak - estimate.optimizer + of_optimizer * size
    refused = refusal(SizedModel(size, shape), MemoryPlan(optimizer_bytes=of_optimizer), room(there))
    if whole <= there:
        assert refused is None
    if refused is not None:
        assert (8 + of_optimizer) * size > there


@pytest.mark.parametrize(
    ("plan", "host", "gpu", "named", "unnamed"),
    [
        (MemoryPlan(may_keep_8_bits=True), 17, None, ["adamw_8bit", "sharding=fsdp2 on 2 such machines"], ["lora"]),
        (MemoryPlan(may_keep_8_bits=True, loads_weights=True), 8, None, ["lora={rank: 16})"], ["adamw_8bit", "4bit"]),
        (
            MemoryPlan(is_on_host=False, loads_weights=True),
            64,
            4,
            ["4bit", "fsdp2 on 8 GPUs"],
            ["(model.lora={rank: 16})"],
        ),
        (
            MemoryPlan(may_keep_8_bits=True, loads_weights=True),
            3,
            None,
            ["no setting makes it fit"],
            ["lora", "8bit", "fsdp2"],
        ),
        (
            MemoryPlan(only_built=True),
            4,
            None,
            ["building it takes 4.6 GiB", "at most 1 billion parameters do"],
            ["fsdp2"],
        ),
    ],
)
def test_what_would_fit_is_named_and_nothing_else(plan, host, gpu, named, unnamed):
    """1.2 billion parameters that do not fit are refused with the settings by which they would."""
    sentence = refusal(LLAMA, plan, room(host * GB), None if gpu is None else room(gpu * GB))
    assert [words for words in named if words not in sentence] == [], sentence
    assert [words for words in unnamed if words in sentence] == [], sentence


def test_checkpointing_is_named_where_it_is_needed():
    """A setting that leaves no room for all activations is named together with gradient checkpointing."""
    sentence = refusal(replace(LLAMA, length=4096), MemoryPlan(may_keep_8_bits=True), room(15.5 * GB))
    assert "adamw_8bit and model.gradient_checkpointing=full" in sentence


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo2", "granite", "phi3"])
def test_no_family_has_fewer_parameters_than_are_counted(kind):
    """The count is at most the real one, and never far from it."""
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {
        "model_type": kind,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "pad_token_id": None,
    }
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    real = sum(parameter.numel() for parameter in network.parameters())
    counted = fewest_parameters(fields).num_parameters
    assert 0.3 * real < counted <= real


def test_gpt2_is_counted_by_its_own_names():
    """GPT-2's smallest shape has 124 million parameters, of which nearly all are counted."""
    fields = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "vocab_size": 50_257}
    assert 120e6 < fewest_parameters(fields).num_parameters < 124.5e6


@pytest.mark.parametrize("config", [{}, {"model_type": "mamba", "hidden_size": 10**6}, {**SMALL, "hidden_size": "x"}])
def test_what_nobody_knows_is_not_counted(config):
    """Another family, and fields that are missing or no numbers, give no count."""
    assert fewest_parameters(config) is None


def test_the_tightest_control_group_counts(tmp_path):
    """The limit of a group above that of the process binds it too, in version 2 and in version 1."""
    (tmp_path / "jobs/one").mkdir(parents=True)
    (tmp_path / "jobs/memory.max").write_text(f"{2 * GB}\n")
    (tmp_path / "jobs/one/memory.max").write_text("max\n")
    (tmp_path / "membership").write_text("0::/jobs/one\n")
    found = host_room(cgroup=tmp_path, membership=tmp_path / "membership")
    assert 2 * GB <= found.num_bytes <= host_room(cgroup=tmp_path / "none", membership=tmp_path / "none").num_bytes
    assert "control group allows 1.9 GiB" in found.words
    old = tmp_path / "old"
    (old / "memory/docker/abc").mkdir(parents=True)
    (old / "memory/docker/abc/memory.limit_in_bytes").write_text(f"{GB}\n")
    (tmp_path / "membership").write_text("5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    assert "allows 953.7 MiB" in host_room(cgroup=old, membership=tmp_path / "membership").words


def test_a_group_without_a_limit_leaves_the_machine_s(tmp_path):
    """Where no control group limits anything the machine's memory is what there is, each process's share of it."""
    whole = host_room(cgroup=tmp_path, membership=tmp_path / "none")
    half = host_room(2, cgroup=tmp_path, membership=tmp_path / "none")
    assert "this machine has" in whole.words
    assert half.num_bytes == pytest.approx(whole.num_bytes / 2)
    assert "for 2 processes" in half.words


@pytest.mark.parametrize("kind", ["huggingface", "decoder"])
def test_settings_of_a_giant_are_refused_by_both_kinds_of_model(kind):
    """170 billion parameters are refused from the settings alone, whichever kind of model has them."""
    fields = {"hidden_size": 16384, "num_hidden_layers": 40, "intermediate_size": 65536, "num_attention_heads": 128}
    model = {"config": fields} if kind == "huggingface" else {**fields, "num_key_value_heads": None}
    settings = TrainSettings(model={"kind": kind, **model}, optimizer={"kind": "accelerate", "device": "cpu"})
    refuse_from_settings(settings, 1, is_from_outside=True)  # a host's own model is not judged by them
    with pytest.raises(ConfigurationError, match="billion parameters, and training takes"):
        refuse_from_settings(settings, 1)


def test_the_default_model_is_not_refused():
    """What this program trains without any setting fits wherever it starts."""
    model = fewest_parameters(TrainSettings().model.config)
    refuse_from_settings(TrainSettings(), 1)
    assert model.num_parameters < 10**7


def test_a_run_that_has_begun_is_told_what_it_may_change():
    """Neither another algorithm nor adapters are named, which would make it another run, but processes are."""
    plan = MemoryPlan(may_keep_8_bits=True, loads_weights=True)
    sentence = refusal(SizedModel(LLAMA.num_parameters), plan, room(17 * GB), is_begun=True)
    assert "sharding=fsdp2 on 2 such machines" in sentence
    assert "lora" not in sentence
    assert "8bit" not in sentence
    assert "no setting that a begun run may change" in refusal(LLAMA, plan, room(3 * GB), is_begun=True)
