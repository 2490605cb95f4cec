"""Runs with adapters, and what `export` makes of runs."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.adapters.shared.modeling.lora import merge_lora
from holdfast.bootstrap import build
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.operations.trained_model import open_trained
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import EvaluationCompleted
from holdfast.domain.training.text_generation import Sampling
from tests.support.command_line import corpus, tiny

OWN = [*("model.kind=decoder", "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=4")]
LORA = ["model.lora.rank=4", "model.lora.dropout=0.1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus."""
    folder = tmp_path_factory.mktemp("home")
    corpus(folder)
    return folder


def settings_of(home, name, *more, steps=3):
    overrides = tiny(home / "corpus.jsonl", f"run.dir={home / name}", "monitors=[]", *more)
    if any(each.startswith(("model.kind=decoder", "model.path")) for each in more):
        overrides = [each for each in overrides if not each.startswith("model.config")]
    return load_settings([], [*overrides, f"run.budget.steps={steps}"], {}).settings


def train(home, name, *more, steps=3):
    """Train a run and return its last evaluation, in nats a token."""
    run = build(settings_of(home, name, *more, steps=steps))
    evaluations = []
    run.subscribe(EvaluationCompleted, evaluations.append)
    run.run()
    return evaluations[-1].evaluation.loss if evaluations else None


@pytest.fixture(scope="module")
def plain(home):
    """Train a run without adapters and return its folder."""
    train(home, "plain")
    return home / "plain"


@pytest.fixture(scope="module")
def tuned(home, plain):
    """Export the plain run, train adapters on that, and return the run's folder and its last evaluation."""
    assert main(["export", str(plain), str(home / "base")]) == 0
    return home / "tuned", train(home, "tuned", f"model.path={home / 'base'}", *LORA)


def logits_of(network, ids):
    network.eval()
    with torch.no_grad():
        return network(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None], use_cache=False).logits


def assert_same(folder, trained):
    """Let transformers load model and tokenizer in ``folder``, and compare logits."""
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]  # transformers 4 knows the former only
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder).encode("the model reads")])
    torch.testing.assert_close(logits_of(theirs, ids), logits_of(trained.model.network, ids), rtol=0, atol=1e-5)


def test_a_plain_run_is_exported(home, plain):
    """The folder holds model and tokenizer as transformers loads them, and nothing of the optimizer."""
    assert main(["export", str(plain), str(home / "exported")]) == 0
    assert_same(home / "exported", open_trained(plain))
    assert {path.name for path in (home / "exported").iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        "README.md",
    }


def test_a_run_is_exported_to_where_one_stands(home, plain, monkeypatch):
    """The folder may be the empty one that the command is started in."""
    (home / "here").mkdir()
    monkeypatch.chdir(home / "here")
    assert main(["export", str(plain), "."]) == 0
    assert (home / "here" / "model.safetensors").is_file()


def test_a_tuned_run_is_exported_whole(home, tuned):
    """With --merged the adapters are in the weights, which a reader without PEFT loads."""
    assert main(["export", str(tuned[0]), str(home / "merged"), "--merged"]) == 0
    assert not (home / "merged/adapter_config.json").exists()
    assert_same(home / "merged", open_trained(tuned[0]))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_merged_weights_may_have_16_bits(home, tuned, name, dtype, capsys):
    """Each weight is that of the merged model, rounded; transformers reads the dtype, and both losses are said."""
    trained = open_trained(tuned[0])
    merge_lora(trained.model)
    assert main(["export", str(tuned[0]), str(home / name), "--merged", "--format", f"huggingface:{name}"]) == 0
    assert f"nats/token as huggingface:{name}, {tuned[1]:.4f}" in capsys.readouterr().out
    theirs = AutoModelForCausalLM.from_pretrained(home / name)
    assert theirs.dtype == dtype
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, trained.model.network.state_dict()[key].to(dtype)), key


def test_a_tuned_run_is_exported_as_adapters(home, tuned):
    """Without --merged the folder holds adapters, which transformers puts on the base that they name."""
    assert main(["export", str(tuned[0]), str(home / "adapters")]) == 0
    assert not (home / "adapters/model.safetensors").exists()
    trained = open_trained(tuned[0])
    theirs = AutoModelForCausalLM.from_pretrained(home / "adapters")
    ids = torch.tensor([AutoTokenizer.from_pretrained(home / "adapters").encode("the model reads")])
    torch.testing.assert_close(logits_of(theirs, ids), logits_of(trained.model.network, ids), rtol=0, atol=1e-5)


def test_a_tuned_run_is_asked_from_its_folder(tuned):
    """`evaluate` gives the loss that the run measured at its end, and `generate` continues a text."""
    trained = open_trained(tuned[0])
    assert trained.evaluate().loss == pytest.approx(tuned[1], abs=1e-6)
    text = trained.generate("the ", Sampling(4, 0.0))
    assert text.startswith("the ")
    assert len(text) > len("the ")


def test_a_tuned_run_goes_on(home):
    """Two steps and three more by the same command equal five at once, bit for bit, with dropout in the adapters."""
    whole, parted = ["state_store.every=0", *LORA], home / "parted"
    train(home, "whole", *whole, steps=5)
    train(home, "parted", *whole, steps=2)
    train(home, "parted", *whole, steps=5)
    files = [run / "checkpoints/checkpoint-5/adapter_model.safetensors" for run in (home / "whole", parted)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_drawn_base_is_exported_merged_only(home, capsys):
    """Adapters of a base that no folder holds are refused alone, and exported with --merged; so of an own decoder."""
    train(home, "drawn", *OWN, *LORA, steps=1)
    assert main(["export", str(home / "drawn"), str(home / "drawn-model")]) == 2
    assert "add --merged" in capsys.readouterr().err
    assert main(["export", str(home / "drawn"), str(home / "drawn-model"), "--merged"]) == 0
    assert_same(home / "drawn-model", open_trained(home / "drawn"))
    assert json.loads((home / "drawn-model/config.json").read_text())["model_type"] == "llama"


def test_a_decoder_that_transformers_lacks_is_refused(home, capsys):
    """A shape without a class in transformers is not exported, and what is in the way is named; it can be evaluated."""
    loss = train(home, "own", *OWN, "model.norm=layernorm", steps=1)
    assert open_trained(home / "own").evaluate().loss == pytest.approx(loss, abs=1e-6)
    assert main(["export", str(home / "own"), str(home / "own-model")]) == 2
    assert "needs model.norm=rmsnorm" in capsys.readouterr().err
    assert not (home / "own-model").exists()


def test_what_cannot_be_exported_is_said(home, plain, capsys):
    """Adapters that are not there, and a folder that is not empty, end with code 2 and leave all as it was."""
    assert main(["export", str(plain), str(home / "nothing"), "--merged"]) == 2
    assert "trained no adapters" in capsys.readouterr().err
    (home / "full").mkdir()
    (home / "full/mine.txt").write_text("mine")
    assert main(["export", str(plain), str(home / "full")]) == 2
    assert "already exists" in capsys.readouterr().err
    assert [path.name for path in (home / "full").iterdir()] == ["mine.txt"]
    assert not list(home.glob(".nothing*")) + list(home.glob(".full*"))
