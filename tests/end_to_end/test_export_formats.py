"""The formats of `export`: losses before and after, model cards, and refusals."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from holdfast.bootstrap import build
from holdfast.bootstrap.cli.main import main
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import corpus, tiny
from tests.support.small_tokenizers import small_tokenizer, write_tokenizer

gguf = pytest.importorskip("gguf")
pytest.importorskip("torchao")

SHAPES = {
    "llama": (),
    "gpt2": ("model.config={model_type: gpt2, n_embd: 32, n_layer: 2, n_head: 4, n_positions: 64}",),
    "own": ("model.kind=decoder", "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=4"),
}
CLOSE = ("huggingface:bf16", "huggingface:f16", "gguf:f16", "gguf:bf16", "gguf:q8_0", "torchao:int8")
COARSE = ("gguf:q4_0", "torchao:int4", "torchao:fp8")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus, and a run of each shape."""
    folder = tmp_path_factory.mktemp("home")
    corpus(folder)
    for name, settings in SHAPES.items():
        train(folder, name, *settings)
    return folder


def train(home, name, *more, steps=40):
    overrides = tiny(home / "corpus.jsonl", f"run.dir={home / name}", "monitors=[]", "optimizer.learning_rate=1e-2")
    dropped = ("model.config", *(["tokenizer.vocabulary_size"] if "tokenizer.kind=huggingface" in more else []))
    kept = [each for each in overrides if not (more and each.startswith(dropped))]
    build(load_settings([], [*kept, f"run.budget.steps={steps}", *more], {}).settings).run()


def exported(home, capsys, name, *options, folder="out"):
    """Export a run and return the figures that the command prints."""
    capsys.readouterr()
    assert main(["export", str(home / name), str(home / folder), "--json", *options]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("form", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_stays(home, capsys, shape, form):
    """16 and 8 bits keep the held-out loss within 0.5 %, for three shapes of models."""
    figures = exported(home, capsys, shape, "--format", form, "--max-loss-increase", "0.5%", folder=f"{shape}-{form}")
    assert figures["loss_before"] < 5.0  # that of a model which guesses is 5.7
    assert abs(figures["loss_increase"]) <= 0.005
    assert figures["tokens"] > 500


@pytest.mark.slow
@pytest.mark.parametrize("form", COARSE)
@pytest.mark.parametrize("shape", SHAPES)
def test_coarse_weights_are_measured(home, capsys, shape, form):
    """The loss of coarser weights is told, and it is that of the same model."""
    figures = exported(home, capsys, shape, "--format", form, folder=f"{shape}-{form}")
    assert figures["loss_increase"] != 0
    assert abs(figures["loss_increase"]) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["huggingface", "gguf:q8_0", "torchao:int8"])
@pytest.mark.parametrize("shape", SHAPES)
def test_zeros_stay_zeros(home, capsys, shape, form):
    """2:4 sparsity leaves half of the weights in linear layers zero, in each format as it is read back."""
    figures = exported(home, capsys, shape, "--format", form, "--sparsity", "2:4", folder=f"{shape}-{form}-sparse")
    assert 0.5 <= figures["zeros"] < 0.6
    assert figures["loss_after"] > figures["loss_before"]


def test_the_folder_of_transformers_has_the_loss_of_the_run(home, capsys):
    """The plain export changes nothing, and a share of zeros changes the loss as told."""
    plain = exported(home, capsys, "llama", folder="plain")
    assert plain["loss_after"] == pytest.approx(plain["loss_before"], abs=1e-6)
    sparse = exported(home, capsys, "llama", "--sparsity", "0.25", folder="sparse")
    assert sparse["zeros"] == pytest.approx(0.25, abs=0.01)
    assert sparse["loss_before"] == plain["loss_before"]
    zeros = sum(int((each == 0).sum()) for each in load_file(home / "sparse/model.safetensors").values())
    assert zeros > 0


def test_the_loss_is_that_of_evaluate(home, capsys):
    """The loss before is the one that `evaluate` prints, and other data are measured where they are named."""
    assert main(["evaluate", str(home / "llama"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    figures = exported(home, capsys, "llama", folder="evaluated")
    assert figures["loss_before"] == pytest.approx(found["loss"], abs=1e-5)
    assert figures["tokens"] == found["tokens"]
    other = exported(home, capsys, "llama", "--data", str(home / "corpus.jsonl"), folder="evaluated")
    assert other["tokens"] > figures["tokens"]
    assert not other["is_new"]


def test_too_large_a_loss_leaves_nothing(home, capsys):
    """An export whose loss rises by more than is allowed ends with code 4, says both losses, and leaves no folder."""
    before = sorted(home.iterdir())
    options = ["--sparsity", "0.9", "--max-loss-increase", "0.5%"]
    assert main(["export", str(home / "llama"), str(home / "worse"), *options]) == 4
    assert "beyond --max-loss-increase 0.50%: nothing was written" in capsys.readouterr().err
    assert sorted(home.iterdir()) == before


def test_the_card_says_what_the_model_is(home, capsys):
    """The card has the licence, the data with their version, both losses, and commands that name run and format."""
    options = ["--format", "gguf:q8_0", "--license", "apache-2.0"]
    figures = exported(home, capsys, "llama", *options, folder="with-card")
    card = (home / "with-card/README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\n")
    assert f"| original | {figures['loss_before']:.4f} |" in card
    assert f"| gguf:q8\\_0 | {figures['loss_after']:.4f} |" in card
    assert str(home / "corpus.jsonl").replace("_", "\\_") in card
    assert "| version | dataset | documents | tokens | steps |" in card
    assert f"export {home / 'llama'} with-card --format gguf:q8_0 --license apache-2.0" in card
    assert "train run.dir=" in card


def test_adapters_are_merged_first(home, capsys):
    """A run with adapters is written as GGUF only with --merged, and then it has the loss of the adapted model."""
    pytest.importorskip("peft")
    train(home, "tuned", *SHAPES["own"], "model.lora.rank=4", steps=10)
    assert main(["export", str(home / "tuned"), str(home / "alone"), "--format", "gguf:f16"]) == 2
    assert "--format gguf:f16 changes the weights that they adapt: add --merged" in capsys.readouterr().err
    options = ["--format", "gguf:f16", "--merged", "--max-loss-increase", "0.5%"]
    assert abs(exported(home, capsys, "tuned", *options, folder="together")["loss_increase"]) <= 0.005


def test_the_chat_template_is_in_the_file(home, capsys):
    """A run whose tokenizer has a chat template gives it to the GGUF file."""
    (home / "tokenizer").mkdir()
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    write_tokenizer(small_tokenizer("gpt-2"), home / "tokenizer", chat_template=template)
    train(home, "talking", f"tokenizer.path={home / 'tokenizer'}", "tokenizer.kind=huggingface", steps=1)
    exported(home, capsys, "talking", "--format", "gguf:f16", folder="talking-out")
    fields = gguf.GGUFReader(home / "talking-out/model-F16.gguf").fields
    assert fields["tokenizer.chat_template"].contents() == template


def test_a_run_without_held_out_documents_is_exported(home, capsys):
    """Without held-out documents the export is read back and a note says that no loss was compared."""
    train(home, "unmeasured", "data.holdout=0", steps=1)
    assert main(["export", str(home / "unmeasured"), str(home / "unmeasured-out"), "--format", "gguf:f16"]) == 0
    assert "no loss was compared" in capsys.readouterr().err
    limited = ["export", str(home / "unmeasured"), str(home / "limited"), "--max-loss-increase", "0.1"]
    assert main(limited) == 2
    assert "add --data FILE" in capsys.readouterr().err


def test_lost_data_are_told(home, capsys):
    """A run whose data are gone is not exported unmeasured by itself; with --unchecked it is."""
    data = home / "moved.jsonl"
    data.write_bytes((home / "corpus.jsonl").read_bytes())
    train(home, "moved", f"data.path={data}", f"run.cache_dir={home / 'other-cache'}", steps=1)
    data.unlink()
    assert main(["export", str(home / "moved"), str(home / "moved-out")]) == 3
    assert "--unchecked" in capsys.readouterr().err
    assert not (home / "moved-out").exists()
    assert main(["export", str(home / "moved"), str(home / "moved-out"), "--unchecked"]) == 0
    assert "The export was not read back." in (home / "moved-out/README.md").read_text()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--format", "gguf:q2_k"], "there is no format gguf:q2_k: choose one of"),
        (["--sparsity", "2"], "the sparsity is 2: make it 2:4"),
        (["--unchecked", "--max-loss-increase", "0.1"], "--unchecked measures no loss"),
        (["run.seed=1"], "cannot change run.seed=1"),
    ],
)
def test_mistakes_are_told(home, capsys, options, complaint):
    """An option that cannot be carried out ends with code 2 and a sentence, and leaves no folder."""
    assert main(["export", str(home / "llama"), str(home / "never"), *options]) == 2
    assert complaint in capsys.readouterr().err
    assert not (home / "never").exists()
