"""Models that were fine-tuned on conversations stop at the end of a turn in other programs too."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList, pipeline

from holdfast.bootstrap import build
from holdfast.bootstrap.cli.main import main
from holdfast.configs.settings_layers import load_settings
from tests.support.planted_chats import base, fine_tuned, prompts, write_chats, write_plain

SHORT = ("run.budget.steps=1", "model.kind=huggingface")
OWN = {"temperature": 0.6, "top_k": 7, "do_sample": True}
ASKED = [{"role": "user", "content": "Say amber"}]


class SaysThenEnds(LogitsProcessor):
    """Has a model write two tokens and then the id ``end``, however it was trained."""

    def __init__(self, end, prompt):
        self.end, self.prompt = end, prompt

    def __call__(self, input_ids, scores):
        chosen = self.end if input_ids.shape[1] - self.prompt == 2 else 40
        return torch.full_like(scores, -1e9).index_fill(1, torch.tensor([chosen]), 0.0)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a base model for two steps, and give its folder settings of generation."""
    home = tmp_path_factory.mktemp("ends")
    write_plain(home / "plain.jsonl", prompts())
    write_chats(home / "chats.jsonl", prompts())
    build(load_settings([], [*base(home), "run.budget.steps=2"], {}).settings, monitors=[]).run()
    assert main(["export", str(home / "base"), str(home / "model"), "--unchecked"]) == 0
    (home / "model/generation_config.json").write_text(json.dumps({**OWN, "eos_token_id": 0}))
    return home


def tuned(home, name, *more):
    """Fine-tune the base model for one step; return the run."""
    settings = fine_tuned(home, name, home / "model", *SHORT, *more)
    build(load_settings([], settings, {}).settings, monitors=[]).run()
    return home / name


@pytest.fixture(scope="module")
def run(home):
    return tuned(home, "tuned")


def exported(run, name, *options):
    folder = run.parent / name
    assert main(["export", str(run), str(folder), "--unchecked", *options]) == 0
    return folder


def ends_in(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_end|>")]


def assert_stops(folder):
    """Let plain transformers generate from ``folder`` a reply of two tokens, without any option about its end."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    length = asked["input_ids"].shape[1]
    for end in ends_in(folder):
        forced = LogitsProcessorList([SaysThenEnds(end, length)])
        out = model.generate(**asked, max_new_tokens=20, do_sample=False, logits_processor=forced)
        assert out[0, length:].tolist() == [40, 40, end]


def assert_settings(folder):
    fields = json.loads((folder / "generation_config.json").read_text())
    assert {name: fields[name] for name in OWN} == OWN
    assert fields["eos_token_id"] == ends_in(folder)


def test_an_export_and_a_checkpoint_stop_in_transformers(run):
    """The settings name end-of-text and the end of a turn, keep the rest of the base's, and ``generate`` obeys them."""
    for folder in (exported(run, "exported"), run / "checkpoints/checkpoint-1"):
        assert_settings(folder)
        assert_stops(folder)
        assert AutoTokenizer.from_pretrained(folder).chat_template


def test_a_pipeline_stops(run):
    """The pipeline of transformers, given messages, ends its reply at the end of the turn."""
    folder = exported(run, "piped")
    pipe = pipeline("text-generation", str(folder), device="cpu")
    length = len(pipe.tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False))
    forced = LogitsProcessorList([SaysThenEnds(ends_in(folder)[1], length)])
    (said,) = pipe(ASKED, max_new_tokens=20, return_full_text=False, logits_processor=forced)
    assert len(pipe.tokenizer.encode(said["generated_text"])) == 2


def test_a_decoder_stops(home):
    """A model of Holdfast's own decoder is exported with such settings too."""
    folder = exported(tuned(home, "own", "model.kind=decoder"), "own-exported")
    assert_settings(folder)
    assert_stops(folder)


def test_merged_adapters_stop(home):
    """Adapters merged into the base stop at the end of a turn; by themselves they carry the settings for a reader."""
    run = tuned(home, "adapted", "model.lora.rank=2")
    merged = exported(run, "merged", "--merged")
    assert_settings(merged)
    assert_stops(merged)
    assert_settings(exported(run, "adapters"))


def test_torchao_keeps_the_ends(run):
    """A folder of quantized weights has the settings as they are, not those that transformers makes up."""
    pytest.importorskip("torchao")
    assert_settings(exported(run, "int8", "--format", "torchao:int8"))


def test_gguf_names_the_ends(run):
    """The file names end-of-text and the end of a turn, and has the chat template."""
    gguf = pytest.importorskip("gguf")
    folder = exported(run, "gguf", "--format", "gguf:f16")
    fields = gguf.GGUFReader(folder / "model-F16.gguf").fields
    ends = [fields[f"tokenizer.ggml.{name}_token_id"].contents() for name in ("eos", "eot")]
    assert ends == ends_in(run / "checkpoints/checkpoint-1")
    assert "<|im_start|>" in fields["tokenizer.chat_template"].contents()
    assert "tokenizer.ggml.eom_token_id" not in fields
