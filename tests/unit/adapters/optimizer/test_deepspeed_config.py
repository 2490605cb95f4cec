"""A DeepSpeed file is accepted as it is, unless it contradicts the run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.optimizer.deepspeed_config import complete_config, read_config, unused_parts
from holdfast.adapters.shared.device.device_selection import choose_precision
from holdfast.bootstrap.stages.choose.hardware import choose_hardware
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError

OWN = {
    "zero_optimization.stage": None,
    "zero_optimization.offload_optimizer.device": None,
    "zero_optimization.offload_param.device": None,
    "bf16.enabled": True,
    "gradient_clipping": 1.0,
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer.params.lr": 3e-4,
    "optimizer.params.betas": (0.9, 0.95),
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.1,
    "optimizer.algorithm": "adamw",
}
FULL = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}},
    "gradient_clipping": 1,
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 4,
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
    },
}


def complete(config, *, num_ranks=2, **own):
    return complete_config(config, {**OWN, **own}, num_ranks=num_ranks)


@pytest.mark.parametrize("config", [{}, FULL])
def test_a_file_that_agrees_or_says_nothing_is_taken(config):
    """Values that equal the run's, whole numbers and lists among them, or that are absent, are no contradiction."""
    whole = complete(config)
    assert (whole["gradient_clipping"], whole["bf16"]["enabled"]) == (1.0, True)
    assert "optimizer" not in whole
    assert "train_batch_size" not in whole


def test_auto_is_the_run_s_value_or_else_absent():
    """No "auto" reaches the engine, however deep it stands: it is the run's value, or DeepSpeed's default."""
    zero = {"stage": "auto", "reduce_bucket_size": "auto", "offload_optimizer": {"device": "auto", "pin_memory": True}}
    rest = {
        "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "aio": {"thread_count": "auto"},
    }
    whole = complete({"zero_optimization": zero, **rest}, **{"zero_optimization.stage": 1})
    assert "auto" not in json.dumps(whole)
    assert whole["zero_optimization"] == {"stage": 1, "offload_optimizer": {"pin_memory": True}}


def test_what_the_run_leaves_open_is_the_file_s():
    """Stage and offload come from the file where the settings are null."""
    zero = complete(FULL)["zero_optimization"]
    assert zero == {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}}


def test_what_the_run_sets_joins_the_file_s_details():
    """Offload of the run and, say, pinned memory of the file go together."""
    file = {"zero_optimization": {"offload_optimizer": {"device": "auto", "pin_memory": True}}}
    zero = complete(file, **{"zero_optimization.offload_optimizer.device": "cpu"})["zero_optimization"]
    assert zero == {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}


@given(
    st.dictionaries(
        st.from_regex(r"x_[a-z]{1,8}", fullmatch=True),
        st.integers() | st.booleans() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
        max_size=4,
    )
)
def test_keys_that_holdfast_knows_nothing_of_go_through(strange):
    """Sections such as aio reach the engine as they stand."""
    whole = complete({**strange, "aio": {"block_size": 1048576, "queue_depth": 8}})
    assert {name: whole[name] for name in strange} == strange
    assert whole["aio"] == {"block_size": 1048576, "queue_depth": 8}


@pytest.mark.parametrize(
    ("config", "own", "words"),
    [
        ({"gradient_clipping": 0.5}, {}, ["gradient_clipping is 0.5", "optimizer.clip is 1.0"]),
        ({"train_batch_size": 64}, {}, ["train_batch_size is 64", "optimizer.batch_size is 32"]),
        ({"train_micro_batch_size_per_gpu": 8}, {}, ["_per_gpu is 8", "optimizer.micro_batch is 4"]),
        ({"gradient_accumulation_steps": 2}, {}, ["micro-batches of 4, 2 times on 2", "16 sequences", "32"]),
        (
            {"train_micro_batch_size_per_gpu": 1},
            {"train_micro_batch_size_per_gpu": None},
            ["_per_gpu is 1", "16 sequences at once", "optimizer.micro_batch=1"],
        ),
        ({"optimizer": {"type": "Lamb"}}, {}, ["Lamb", "optimizer.algorithm is adamw"]),
        ({"optimizer": {"type": "AdamW"}}, {"optimizer.algorithm": "lion"}, ["AdamW", "lion"]),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, {}, ["Adam", "adamw"]),
        ({"optimizer": {"params": {"lr": 1e-3}}}, {}, ["params.lr is 0.001", "optimizer.learning_rate is 0.0003"]),
        ({"optimizer": {"params": {"betas": [0.9, 0.999]}}}, {}, ["[0.9, 0.999]", "optimizer.betas is [0.9, 0.95]"]),
        ({"fp16": {"enabled": True}}, {}, ["fp16.enabled is true", "optimizer.precision is bf16"]),
        ({"amp": {"enabled": True}}, {"bf16.enabled": False}, ["amp.enabled is true", "fp32"]),
        ({"bf16": {"enabled": True}}, {"bf16.enabled": False}, ["bf16.enabled is True", "optimizer.precision"]),
        ({"bfloat16": {"enabled": False}}, {}, ["bf16.enabled is False", "optimizer.precision"]),
        ({"zero_optimization": {"stage": 3}}, {"zero_optimization.stage": 2}, ["stage is 3", "optimizer.stage is 2"]),
        ({"zero_optimization": {"stage": 0}}, {}, ["stage is 0", "1, 2 or 3"]),
        ({"zero_optimization": {"offload_optimizer": "cpu"}}, {}, ["offload_optimizer is 'cpu'", "an object"]),
        ({"zero_optimization": True}, {}, ["zero_optimization is True", "not a JSON object"]),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            {"zero_optimization.offload_optimizer.device": "none"},
            ["is 'cpu'", "optimizer.offload is 'none'"],
        ),
        ({"zero_optimization": {"offload_param": {"device": "cpu"}}}, {}, ["optimizer.offload_parameters", "stage 3"]),
        (
            {},
            {"zero_optimization.offload_optimizer.device": "nvme"},
            ["offload_optimizer.nvme_path", "optimizer.config"],
        ),
    ],
)
def test_a_contradiction_is_refused_in_one_sentence(config, own, words):
    """Each names the file's key and value, the run's setting, and what to do."""
    with pytest.raises(ConfigurationError) as caught:
        complete(config, **own)
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message
    assert not message.endswith(".")


@pytest.mark.parametrize(
    "auto", [{"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}, {"type": "WarmupLR"}]
)
def test_a_scheduler_is_told_and_left_out(auto, tmp_path):
    """The file of other trainers is taken as it is: its schedule is not the run's, which is said in one sentence."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"scheduler": auto}))
    assert "scheduler" not in complete(read_config(str(path)))
    note = unused_parts(str(path))
    assert note is not None
    assert auto["type"] in note
    assert "optimizer.schedule" in note
    path.write_text(json.dumps(FULL))
    assert unused_parts(str(path)) is None


@pytest.mark.parametrize(
    ("file", "precision"), [({"bf16": {"enabled": True}}, "bf16"), ({"bf16": {"enabled": "auto"}}, None), ({}, None)]
)
def test_bf16_in_the_file_is_what_auto_means(file, precision, tmp_path):
    """A file that turns bf16 on decides optimizer.precision=auto, with that as the reason."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(file))
    optimizer = {"kind": "deepspeed", "config": str(path), "device": "cpu"}
    decided = {}

    def decide(name, value, reason):
        decided[name] = (value, reason)
        return value

    chosen = choose_hardware(TrainSettings(optimizer=optimizer), decide)
    _, usual = choose_precision("auto", "cpu")
    assert decided["optimizer.precision"][1] == (usual if precision is None else f"{path} turns it on")
    if precision is not None:
        assert chosen["optimizer.precision"] == precision


@pytest.mark.parametrize("harmless", [{"fp16": {"enabled": False}}, {"fp16": {"enabled": "auto"}}, {"scheduler": None}])
def test_what_is_switched_off_contradicts_nothing(harmless):
    """A section that says that it is off is let be, and not handed on."""
    assert complete(harmless) == complete({})


def test_nvme_takes_its_place_and_its_threads_from_the_file():
    """Offload to NVMe goes with the path that the file names."""
    file = {"zero_optimization": {"offload_optimizer": {"nvme_path": "/scratch"}}, "aio": {"queue_depth": 8}}
    whole = complete(file, **{"zero_optimization.offload_optimizer.device": "nvme"})
    assert whole["zero_optimization"]["offload_optimizer"] == {"nvme_path": "/scratch", "device": "nvme"}
    assert whole["aio"] == {"queue_depth": 8}


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "cannot be read"), ("[]", "not a JSON object"), ('{"aio": {"a": 1, "a": 2}}', "a appears twice")],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text, fault):
    """Broken JSON, another kind of JSON and a key that stands twice are named with the file."""
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=fault) as caught:
        read_config(str(path))
    assert str(path) in str(caught.value)
