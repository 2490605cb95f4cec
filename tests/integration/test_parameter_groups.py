"""Which parameters decay, and which Muon steps, over the architectures of transformers."""

from __future__ import annotations

import json
import re
import warnings

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.pytorch_utils import Conv1D

from holdfast.adapters.optimizer.parameter_groups import ParameterRole, parameter_groups
from holdfast.bootstrap.run_folder import folder
from tests.support.command_line import corpus, run_here, tiny

COHERE = {
    "model_type": "cohere",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "use_qk_norm": "true",
    "max_position_embeddings": 64,
}
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}


def on_meta(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def small(kind, **more):
    return on_meta(AutoConfig.for_model(kind, **(SMALL | more)))


def roles(network, **options):
    """Return the role of each parameter, as the group that it is in has it, and whether it decays, by name."""
    groups = parameter_groups(
        network, weight_decay=0.5, decay_embeddings=True, options_of=lambda role: {"role": role}, **options
    )
    names = {parameter: name for name, parameter in network.named_parameters()}
    return {names[each]: (group["role"], group["weight_decay"] > 0) for group in groups for each in group["params"]}


SPARED = {
    "gpt_oss": (r"_bias$|bias$|norm|sinks", {"num_attention_heads": 2, "num_local_experts": 4}),
    "cohere": (r"norm", {"use_qk_norm": True, "num_attention_heads": 2, "num_key_value_heads": 2}),
    "mamba": (r"norm|bias|A_log|\.D$", {}),
    "falcon_mamba": (r"norm|bias|A_log|\.D$", {}),
    "jamba": (r"norm|bias|A_log|\.D$", {"num_experts": 2, "num_attention_heads": 2, "num_key_value_heads": 2}),
    "rwkv": (r"ln|time_", {}),
}


@pytest.mark.parametrize("kind", SPARED)
def test_norms_biases_and_states_do_not_decay_whatever_their_shape(kind):
    """A bias of each expert, a norm of each head and the matrix of a state space are no matrices."""
    pattern, more = SPARED[kind]
    found = roles(small(kind, **more))
    spared = {name for name, (role, decays) in found.items() if not decays}
    assert spared == {name for name in found if re.search(pattern, name)}
    assert all(found[name][0] is ParameterRole.VECTOR for name in spared)


def test_an_architecture_named_after_its_norms_decays():
    """The name of the base model says nothing about the matrices below it."""
    found = roles(small("roberta-prelayernorm", num_attention_heads=2, is_decoder=True))
    assert found["roberta_prelayernorm.encoder.layer.0.intermediate.dense.weight"] == (ParameterRole.MATRIX, True)


def test_a_parameter_that_is_marked_does_not_decay():
    """Code that a checkpoint brings marks what must not decay, as that of Mamba's authors does."""
    network = nn.Linear(4, 4)
    network.weight._no_weight_decay = True
    assert not roles(network)["weight"][1]


def train(home, *settings):
    own = [each for each in tiny(home / "corpus.jsonl") if not each.startswith(("model.", "run.name="))]
    config = [f"model.config.{name}={value}" for name, value in COHERE.items()]
    common = ("model.kind=huggingface", *config, "optimizer.algorithm=muon", "optimizer.weight_decay=0.5")
    process = run_here("train", *own, *common, *settings, cwd=home)
    assert process.returncode == 0, process.stderr


def group_of(name, run):
    newest = run / "checkpoints/checkpoint-2"
    groups = json.loads((newest / "optimizer.json").read_text())["groups"]
    return next((group["algorithm"], group["weight_decay"]) for group in groups if name in group["params"])


def test_a_run_that_began_by_another_rule_keeps_its_groups(tmp_path, monkeypatch):
    """A run without a record of the rule continues by the first one, and a new run records and keeps the newest."""
    corpus(tmp_path)
    norm = "model.layers.0.self_attn.q_norm.weight"
    for name, version, group in (("old", 1, ("muon", 0.5)), ("new", 2, ("adamw", 0.0))):
        path = tmp_path / "runs" / name / "run.json"
        with monkeypatch.context() as patch:
            patch.setattr(folder, "RULES", {**folder.RULES, "parameter_groups": version})
            train(tmp_path, f"run.name={name}", "run.budget.steps=1")
        record = json.loads(path.read_text())
        assert record["rules"]["parameter_groups"] == version
        if name == "old":
            del record["rules"]
            path.write_text(json.dumps(record | {"schema": 1}))
        train(tmp_path, f"run.name={name}", "run.budget.steps=2")
        assert group_of(norm, path.parent) == group
        assert json.loads(path.read_text())["rules"]["parameter_groups"] == version


def every_type():
    """Yield the name and a network on the meta device of each causal type of the installed transformers."""
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                network = on_meta(kind())
            except Exception:  # noqa: BLE001  each class has its own error for defaults that make no model
                continue
        yield kind.__name__, network


def is_scale(name, parameter):
    """Return whether a parameter that is no norm and no bias by its name has one number for each channel or head."""
    own = name.rpartition(".")[2]
    return parameter.dim() < 2 or (own != "weight" and sum(size > 1 for size in parameter.shape) < 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_groups_of_every_causal_type_are_those_of_trainer():
    """Over all types decay is that of Trainer, except for scales, states and a base model that is named after norms."""
    number = 0
    for kind, network in every_type():
        number += 1
        theirs = set(Trainer.get_decay_parameter_names(None, network))
        parameters, modules = dict(network.named_parameters()), dict(network.named_modules())
        head = network.get_output_embeddings()
        for name, (role, decays) in roles(network).items():
            parameter, (place, _, own) = parameters[name], name.rpartition(".")
            if decays != (name in theirs):
                is_known = is_scale(name, parameter) or own in ("A_log", "D")
                assert is_known if not decays else kind == "RobertaPreLayerNormConfig", (kind, name)
            if role is ParameterRole.MATRIX:
                owner = modules[place]
                is_router = type(owner).__name__.endswith("Router")
                assert isinstance(owner, nn.Linear | Conv1D) or is_router, (kind, name)
                assert decays, (kind, name)
                assert head is None or parameter is not head.weight, (kind, name)
    assert number >= 170
