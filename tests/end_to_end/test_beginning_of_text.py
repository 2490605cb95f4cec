"""A model is taught, measured and exported with the beginning of text that its tokenizer puts before a document."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoTokenizer

from holdfast.adapters.shared.files.regular_file import sealed
from holdfast.bootstrap import build
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.operations.trained_model import open_trained
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import losses
from tests.support.gguf_models import LLAMA, network_of
from tests.support.small_tokenizers import TEXTS, sentencepiece_tokenizer, write_tokenizer

SPECIAL = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a small Llama whose tokenizer begins texts, and one text."""
    home = tmp_path_factory.mktemp("beginning")
    network_of(LLAMA).save_pretrained(home / "model")
    write_tokenizer(sentencepiece_tokenizer(), home / "model", **SPECIAL)
    (home / "text.jsonl").write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    return home


def settings(home, name, *more):
    words = [
        f"run.dir={home / name}",
        f"run.cache_dir={home / 'cache'}",
        f"data.path={home / 'text.jsonl'}",
        "data.sequence_length=64",
        "data.holdout=0",
        f"model.path={home / 'model'}",
        "tokenizer.backend=huggingface",
        "optimizer.device=cpu",
        "optimizer.precision=fp32",
        "optimizer.batch_size=1",
        "evaluation.every=0",
        "evaluation.at_start=false",
        "sample.max_new_tokens=1",
        "run.report=false",
        "run.budget.steps=1",
        *more,
    ]
    return load_settings([], words, {}).settings


def trained(home, name, *more):
    build(settings(home, name, *more)).run()
    return home / name


def loss_in_transformers(home, *, begins):
    tokenizer = AutoTokenizer.from_pretrained(home / "model")
    ids = tokenizer(TEXTS[0], add_special_tokens=begins, return_tensors="pt")["input_ids"]
    ids = torch.cat([ids, torch.tensor([[tokenizer.eos_token_id]])], 1)
    with torch.no_grad():
        return float(network_of(LLAMA)(input_ids=ids, labels=ids).loss)


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_the_first_loss_is_that_of_transformers(home, mode):
    """A text has the loss that transformers gives it with its tokenizer's own beginning of text."""
    run = trained(home, mode, f"data.mode={mode}")
    with_it, without = (loss_in_transformers(home, begins=begins) for begins in (True, False))
    assert losses(run)[1] == pytest.approx(with_it, abs=1e-4)
    assert abs(with_it - without) > 0.01
    off = trained(home, f"{mode}-off", f"data.mode={mode}", "tokenizer.add_bos=false")
    assert losses(off)[1] == pytest.approx(without, abs=1e-4)


def test_a_checkpoint_and_its_exports_begin_texts_as_trained(home):
    """AutoTokenizer and ``generate`` begin a text as the run did, also one that was told to begin without a token."""
    for name, more in (("begun", ()), ("bare", ("tokenizer.add_bos=false",))):
        run = trained(home, f"export-{name}", *more)
        assert main(["export", str(run), str(home / name), "--unchecked"]) == 0
        opened = open_trained(run, device="cpu")
        begin = [1] * (name == "begun")
        assert list(opened.tokenizer.around[0]) == begin
        for folder in (home / name, run / "checkpoints/checkpoint-1"):
            ids = AutoTokenizer.from_pretrained(folder)(TEXTS[0])["input_ids"]
            assert ids == [*begin, *opened.tokenizer.encode([TEXTS[0]]).ids.tolist()]


def test_a_run_of_an_earlier_version_continues_without(home):
    """A run whose record does not know the setting goes on without a beginning of text, and so do its checkpoints."""
    run = trained(home, "former", "tokenizer.add_bos=false", "run.budget.steps=1")
    record = json.loads((run / "run.json").read_text())
    assert record["settings"]["tokenizer"].pop("add_bos") is False
    (run / "run.json").write_text(json.dumps(sealed(record)))
    assert open_trained(run, device="cpu").tokenizer.around[0] == ()
    for steps in (2, 3):
        trained(home, "former", f"run.budget.steps={steps}")
        assert open_trained(run, device="cpu").tokenizer.around[0] == ()
    other = trained(home, "other", "tokenizer.add_bos=false", "run.budget.steps=3")
    assert losses(run)[3] == losses(other)[3]
