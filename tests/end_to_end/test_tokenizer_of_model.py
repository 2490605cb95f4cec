"""The tokenizer follows the model: weights are never fed the ids of another one unless somebody says so."""

from __future__ import annotations

import json
import re

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel

from holdfast.adapters.shared.files.regular_file import sealed
from tests.support.command_line import corpus, run_here, tiny

END = "<|endoftext|>"


def trained(path, size):
    """Return a byte-level tokenizer of ``size`` ids trained on the corpus at ``path``, end-of-text the last."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=[END], show_progress=False)
    core.train([str(path)], trainer)
    assert core.get_vocab_size() == size
    return core


def write(core, folder):
    """Write ``core`` as a model folder has it."""
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def permuted(core):
    """Return ``core`` with the ids of its last two words exchanged."""
    record = json.loads(core.to_str())
    vocabulary = record["model"]["vocab"]
    *_, one, other = sorted(vocabulary, key=vocabulary.get)
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    return Tokenizer.from_str(json.dumps(record))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus, a small GPT-2 with its tokenizer, and other tokenizers."""
    folder = tmp_path_factory.mktemp("home")
    path = corpus(folder)
    own = trained(path, 320)
    config = GPT2Config(vocab_size=320, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    for name in ("gpt2", "bare"):
        GPT2LMHeadModel(config).save_pretrained(folder / name)
    write(own, folder / "gpt2")
    write(trained(path, 300), folder / "smaller")
    write(trained(path, 330), folder / "larger")
    write(permuted(own), folder / "permuted")
    return folder


def settings(home, run, *more):
    """Return the settings of a few steps on the small GPT-2, without any of the tokenizer."""
    base = tiny(home / "corpus.jsonl", f"run.name={run}", f"run.cache_dir={home / run / 'cache'}", "run.budget.steps=2")
    kept = [each for each in base if not each.startswith(("model.", "tokenizer."))]
    return [*kept, "evaluation.every=0", "evaluation.at_start=false", "model.path=./gpt2", *more]


def test_a_model_is_trained_with_its_own_tokenizer(home):
    """``train model.path=...`` alone uses the tokenizer of that folder, and says so in its record and in ``config``."""
    process = run_here("train", *settings(home, "own"), cwd=home)
    assert process.returncode == 0, process.stderr
    record = json.loads((home / "runs/own/run.json").read_text())
    assert record["settings"]["tokenizer"]["path"] == "./gpt2"
    used = Tokenizer.from_file(str(next(home.glob("runs/own/checkpoints/*/tokenizer.json"))))
    assert used.get_vocab() == Tokenizer.from_file(str(home / "gpt2/tokenizer.json")).get_vocab()
    shown = run_here("config", "model.path=./gpt2", cwd=home).stdout
    assert re.search(r'  path: "\./gpt2"  # that of model.path \(command line\)', shown), shown


def test_a_checkpoint_of_ours_brings_its_tokenizer(home):
    """A run may begin from the checkpoint of another run, of a decoder of our own too, by its folder alone."""
    first = [each for each in settings(home, "first") if not each.startswith("model.path")]
    shape = ["model.kind=decoder", "model.hidden_size=32", "model.num_hidden_layers=1", "model.intermediate_size=64"]
    shape += ["model.num_attention_heads=2", "model.num_key_value_heads=1", "model.gated=false"]
    process = run_here("train", *first, *shape, "tokenizer.vocabulary_size=300", cwd=home)
    assert process.returncode == 0, process.stderr
    assert process.stderr.index("warning: export will refuse this model") < process.stderr.index("step 1/")
    base = "model.path=runs/first/checkpoints/checkpoint-2"
    process = run_here("train", *settings(home, "second"), "model.kind=decoder", base, cwd=home)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("no tokenizer there", ["model.path=./bare"], r"the model \./bare comes with no tokenizer .*tokenizer.path"),
        (
            "smaller",
            ["tokenizer.kind=huggingface", "tokenizer.path=./smaller"],
            "it has 300 ids and the model's has 320",
        ),
        (
            "larger",
            ["tokenizer.kind=huggingface", "tokenizer.path=./larger"],
            "tokenizer has 330 ids but the model .* 320",
        ),
        ("permuted", ["tokenizer.kind=huggingface", "tokenizer.path=./permuted"], r"id 318 is .* and the model's is"),
        (
            "trained",
            ["tokenizer.kind=train", "tokenizer.vocabulary_size=300"],
            "were trained with a tokenizer of 320 ids",
        ),
        ("trained, as large", ["tokenizer.kind=train", "tokenizer.vocabulary_size=320"], "is not that of the weights"),
        (
            "trained, nothing to compare",
            ["tokenizer.kind=train", "model.path=./bare"],
            "were trained with another tokenizer: .*tokenizer.allow_other=true",
        ),
    ],
)
@pytest.mark.parametrize("command", ["train", "prepare"])
def test_another_tokenizer_is_refused_before_anything_is_tokenized(home, command, name, more, says):
    """A tokenizer that is smaller, larger, of the same size with other ids, or none at all, ends with 2."""
    run = f"refused {name} {command}".replace(" ", "-").replace(",", "")
    process = run_here(command, *settings(home, run, *more), cwd=home)
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    (sentence,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(says, sentence), sentence
    assert not list(home.glob(f"{run}/cache/tokens/*/*"))


def test_a_refused_tokenizer_is_not_remembered(home):
    """After a start that was refused for its tokenizer, the same command without one trains with the model's."""
    wrong = ["tokenizer.kind=train", "tokenizer.vocabulary_size=4096", "model.path=./bare"]
    assert run_here("train", *settings(home, "mended", *wrong), cwd=home).returncode == 2
    process = run_here("train", *settings(home, "mended"), cwd=home)
    assert process.returncode == 0, process.stderr


def test_another_tokenizer_may_be_asked_for(home):
    """With ``tokenizer.allow_other`` a smaller tokenizer is taken, and the run goes on with it."""
    more = ["tokenizer.kind=huggingface", "tokenizer.path=./smaller", "tokenizer.allow_other=true"]
    assert run_here("train", *settings(home, "allowed", *more), cwd=home).returncode == 0
    again = [*more[:2], "run.budget.steps=3"]
    process = run_here("train", *settings(home, "allowed", *again), cwd=home)
    assert process.returncode == 0, process.stderr


def test_a_run_of_an_earlier_version_keeps_the_tokenizer_that_it_trained(home):
    """Where an earlier version trained a tokenizer because none was chosen, the same command continues that run."""
    chosen = ["tokenizer.kind=train", "tokenizer.allow_other=true", "model.path=./wide"]
    config = GPT2Config(vocab_size=5000, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(home / "wide")
    write(trained(home / "corpus.jsonl", 320), home / "wide")
    assert run_here("train", *settings(home, "old", *chosen), cwd=home).returncode == 0
    path = home / "runs/old/run.json"
    record = json.loads(path.read_text())
    assert record["settings"]["tokenizer"]["kind"] == "train"
    del record["settings"]["tokenizer"]["allow_other"]  # which is younger
    path.write_text(json.dumps(sealed(record)))
    again = settings(home, "old", "model.path=./wide", "run.budget.steps=3")
    for command in (["prepare"], ["train"], ["train", "--from-step", "2"]):
        process = run_here(*command, *again, cwd=home)
        assert process.returncode == 0, process.stderr
        if command == ["prepare"]:
            assert "all of them were there already" in process.stdout
    assert json.loads(path.read_text())["settings"]["tokenizer"]["kind"] == "train"
