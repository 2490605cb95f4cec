"""Other people's checkpoints as the start of a run."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.model_factory.loaded_weights import Trust
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.domain.errors import ConfigurationError

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 258,
}
DEEPSPEED = """
import sys
import deepspeed, torch
from transformers import AutoConfig, AutoModelForCausalLM
folder, stage = sys.argv[1], int(sys.argv[2])
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
network = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA))
engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config={
    "train_batch_size": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
})
ids = torch.arange(16)[None]
engine.backward(engine(input_ids=ids, labels=ids).loss)
engine.step()
engine.save_checkpoint(folder)
network.config.save_pretrained(folder)
if stage < 3:
    network.float().save_pretrained(folder + "-expected")
torch.distributed.destroy_process_group()
"""


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return (open, (str(self.sentinel), "w"))


class Words(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        ids = torch.arange(16) + number
        return {"input_ids": ids, "labels": ids}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def network_of():
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **LLAMA))


def build(folder, *, pickle_of=None):
    factory = HuggingfaceModelFactory(path=str(folder), trusts=Trust(pickle_of=pickle_of))
    return factory.build(vocabulary_size=258, end_of_text=257, seed=0).network


def trusting(folder):
    return build(folder, pickle_of=str(folder))


def assert_has_weights(network, expected):
    own = network.state_dict()
    assert own.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(own[name], tensor.float(), rtol=0, atol=0)


def pickled(folder, contents, name="pytorch_model.bin"):
    """Save ``contents`` as a pickle beside a model's description."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    network_of().config.save_pretrained(folder)
    torch.save(contents, folder / name)
    return folder


def test_a_saved_model_is_a_start(tmp_path):
    """A folder that transformers saved gives its weights, whole or in shards."""
    network = network_of()
    network.save_pretrained(tmp_path / "whole")
    network.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards/model.safetensors.index.json").exists()
    for name in ("whole", "shards"):
        assert_has_weights(build(tmp_path / name), network.state_dict())


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_trainer_is_a_start_and_its_pickles_stay_closed(tmp_path):
    """The weights of a Trainer's checkpoint are read, and no pickle beside them is, even if it is trusted."""
    arguments = TrainingArguments(
        str(tmp_path / "out"), max_steps=1, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    network = network_of()
    Trainer(network, arguments, train_dataset=Words()).train()
    folder = tmp_path / "out/checkpoint-1"
    pickles = [path for path in folder.iterdir() if path.suffix in (".pt", ".pth", ".bin")]
    assert {"optimizer.pt", "scheduler.pt", "training_args.bin"} <= {path.name for path in pickles}
    for path in pickles:
        torch.save(Trap(tmp_path / "sentinel"), path)
    torch.save({"trap": Trap(tmp_path / "sentinel")}, folder / "pytorch_model.bin")
    for built in (build(folder), trusting(folder)):
        assert_has_weights(built, network.state_dict())
    assert not (tmp_path / "sentinel").exists()


def test_a_pickle_is_opened_if_its_folder_is_named(tmp_path):
    """pytorch_model.bin is refused with the setting that would open it, and read if that names the folder itself."""
    expected = network_of().state_dict()
    folder = pickled(tmp_path / "model", expected)
    for other in (None, "some/model", f"{folder}/"):
        with pytest.raises(
            ConfigurationError, match=rf"are a pickle, pytorch_model\.bin.*model\.trust_pickle={folder}"
        ):
            build(folder, pickle_of=other)
    assert_has_weights(trusting(folder), expected)


@pytest.mark.parametrize("is_zipped", [True, False])
def test_both_forms_of_torch_are_read(is_zipped, tmp_path):
    """Half precision and the older form of a pickle are read too, as fp32."""
    expected = {name: tensor.bfloat16() for name, tensor in network_of().state_dict().items()}
    folder = pickled(tmp_path / "model", {})
    torch.save(expected, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zipped)
    assert_has_weights(trusting(folder), expected)


def test_pickled_shards_are_read_together(tmp_path):
    """The files that pytorch_model.bin.index.json names are one model; one without names is refused."""
    expected = network_of().state_dict()
    names = sorted(expected)
    folder = pickled(tmp_path / "model", {name: expected[name] for name in names[::2]}, "a.bin")
    torch.save({name: expected[name] for name in names[1::2]}, folder / "b.bin")
    files = {name: "ab"[number % 2] + ".bin" for number, name in enumerate(names)}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert_has_weights(trusting(folder), expected)
    index.write_text("{}")
    with pytest.raises(ConfigurationError, match="names no files"):
        trusting(folder)


@pytest.mark.parametrize("is_zipped", [True, False])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "global_step1/mp_rank_00_model_states.pt"])
def test_a_trap_is_refused_even_in_a_trusted_folder(name, is_zipped, tmp_path):
    """A pickle that would run code is refused in one sentence, and nothing of it runs."""
    folder = pickled(tmp_path / "model", {}, name)
    (folder / "latest").write_text("global_step1")
    contents = {"module": network_of().state_dict(), "trap": Trap(tmp_path / "sentinel")}
    torch.save(contents, folder / name, _use_new_zipfile_serialization=is_zipped)
    with pytest.raises(ConfigurationError, match="objects other than tensors"):
        trusting(folder)
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize("contents", [{"weight": 1}, [torch.ones(1)], b"", "a lacking tensor", "another shape"])
def test_what_are_no_weights_of_the_model_is_refused(contents, tmp_path):
    """A pickle without tensors by name, an empty file, and weights that do not fit are refused, not filled up."""
    weights = network_of().state_dict()
    if contents == "a lacking tensor":
        weights.pop("model.norm.weight")
    if contents == "another shape":
        weights["model.norm.weight"] = torch.ones(3)
    folder = pickled(tmp_path / "model", weights if isinstance(contents, str) else contents)
    if contents == b"":
        (folder / "pytorch_model.bin").write_bytes(contents)
    with pytest.raises(ConfigurationError):
        trusting(folder)


def test_shards_of_zero_3_are_refused_with_the_way_to_join_them(tmp_path):
    """Weights that ZeRO-3 has sharded are refused with the command that joins them; no other part is read alone."""
    folder = pickled(tmp_path / "model", {}, "global_step7/zero_pp_rank_0_mp_rank_00_model_states.pt")
    (folder / "latest").write_text("global_step7\n")
    for built in (build, trusting):
        with pytest.raises(ConfigurationError, match=r"ZeRO-3 has sharded.*zero_to_fp32\.py.*--safe_serialization"):
            built(folder)
    (folder / "latest").write_text("../global_step8")
    with pytest.raises(ConfigurationError, match="holds no whole model"):
        trusting(folder)


def test_safetensors_come_first(tmp_path):
    """Where there are both, safetensors are read and the pickle stays closed."""
    folder = pickled(tmp_path / "model", {"trap": Trap(tmp_path / "sentinel")})
    expected = network_of().state_dict()
    save_file(expected, folder / "model.safetensors", metadata={"format": "pt"})
    assert_has_weights(trusting(folder), expected)
    assert not (tmp_path / "sentinel").exists()


def test_a_pickle_is_trusted_by_the_model_s_name_only():
    """trust_pickle takes nothing but the value of path."""
    assert HuggingFaceModelSettings(path="./model", trust_pickle="./model").trust_pickle
    for path, trusted in (("./model", "./other"), ("./model", "true"), (None, "./model")):
        with pytest.raises(ValueError, match=r"must be the value of model\.path.*pickle"):
            HuggingFaceModelSettings(path=path, trust_pickle=trusted)


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a new machine DeepSpeed compiles an extension first
@pytest.mark.parametrize("stage", [2, 3])
def test_a_checkpoint_of_deepspeed_is_a_start(stage, tmp_path):
    """What DeepSpeed saved is read up to ZeRO-2 once it is trusted; of ZeRO-3 it is refused."""
    pytest.importorskip("deepspeed")
    folder = tmp_path / "checkpoint"
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    program = DEEPSPEED.replace("LLAMA", repr(LLAMA))
    command = [sys.executable, "-c", program, str(folder), str(stage)]
    child = subprocess.run(command, env=os.environ | rank, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    if stage == 3:
        with pytest.raises(ConfigurationError, match="ZeRO-3"):
            trusting(folder)
        return
    with pytest.raises(ConfigurationError, match="are a pickle"):
        build(folder)
    assert_has_weights(trusting(folder), build(f"{folder}-expected").state_dict())
