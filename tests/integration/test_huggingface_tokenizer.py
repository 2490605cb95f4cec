"""Tokenizers that cannot be used are refused in one sentence."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.domain.errors import ConfigurationError
from tests.support.small_tokenizers import small_tokenizer

OFFLINE = """
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.domain.errors import ConfigurationError
try:
    HuggingfaceTokenizer.load("some-lab/some-model", revision="main")
except ConfigurationError as error:
    print(error)
"""


def refusal_of(path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        HuggingfaceTokenizer.load(str(path))
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def words(*specials: str, **vocabulary: int) -> str:
    core = Core(models.WordLevel({"[UNK]": 0, **vocabulary}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(list(specials))
    return core.to_str()


def test_a_special_token_that_text_can_reach_is_refused(tmp_path):
    """A vocabulary in which the written-out end of a document is a word would let a text end documents."""
    (tmp_path / "words.json").write_text(words("[UNK]", "</s>", **{"</s>": 1}))
    assert "</s>" in refusal_of(tmp_path / "words.json")


def test_an_unknown_token_that_ends_documents_is_refused(tmp_path):
    """A vocabulary whose unknown words become the end of a document is no use."""
    (tmp_path / "words.json").write_text(words("[UNK]"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[UNK]"}))
    assert "[UNK]" in refusal_of(tmp_path / "words.json")


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path):
    """Where nothing is known to end a document the message names the setting."""
    (tmp_path / "words.json").write_text(words(hello=1))
    assert "eos_token" in refusal_of(tmp_path / "words.json")


def test_a_configured_end_of_text_must_exist(tmp_path):
    """An end-of-text that the vocabulary lacks is not replaced by another one."""
    (tmp_path / "words.json").write_text(words("<eos>"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}))
    assert "<end>" in refusal_of(tmp_path / "words.json")


def test_a_file_beside_its_configuration_takes_its_end_of_text(tmp_path):
    """A tokenizer.json in a model folder ends documents as the folder says, special or not in the file itself."""
    vocabulary = {"a": 0, "b": 1, "<": 2, "|": 3, ">": 4, "<|b|>": 5, "<eos>": 6}
    core = Core(models.BPE(vocab=vocabulary, merges=[]))
    core.add_tokens(["<|b|>"])
    (tmp_path / "tokenizer.json").write_text(core.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|b|>"}))
    tokenizer = HuggingfaceTokenizer.load(str(tmp_path / "tokenizer.json"))
    assert tokenizer.end_of_text == 5
    assert tokenizer.encode(["a<|b|>"]).ids.tolist() == [0, 2, 3, 1, 3, 4]


@pytest.mark.parametrize("content", [b"", b"{}", b"text", b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    """Anything else than a tokenizer.json is named."""
    (tmp_path / "some.json").write_bytes(content)
    assert "tokenizer.json" in refusal_of(tmp_path / "some.json")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.json"])
def test_a_path_that_does_not_exist_is_not_looked_for_on_the_hub(tmp_path, name):
    """What looks like a path and is not there is named as such, without a word to the network."""
    assert "there is no file or folder" in refusal_of(tmp_path / name)


def test_the_folder_of_a_model_that_does_not_exist_is_named():
    """A path of several folders is no name on the hub; if the model was chosen, its setting is named."""
    with pytest.raises(ConfigurationError, match=r"there is no folder runs/x/checkpoints: set model.path"):
        HuggingfaceTokenizer.load("runs/x/checkpoints", follows_model=True)


@pytest.mark.parametrize("path", ["company-bas", "./company-bas", "models/company-bas", "company-bas.json"])
def test_a_misspelt_path_is_guessed(path, tmp_path, monkeypatch):
    """A path that is not there, also one that could be a name on the hub, names the entry beside it that is like it."""
    monkeypatch.chdir(tmp_path)
    near = Path(path.replace("bas", "base"))
    near.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=f"did you mean the folder {near}\\?"):
        HuggingfaceTokenizer.load(path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """A folder that holds none is named."""
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in refusal_of(tmp_path / "empty")


def test_a_tokenizer_in_python_is_refused(tmp_path):
    """A tokenizer that transformers has in Python only is too slow for training."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    assert "Python only" in refusal_of(tmp_path / "slow")


def test_code_of_a_model_is_never_run(tmp_path):
    """A tokenizer that is a model's own code is refused, and the code does not run."""
    folder = tmp_path / "remote"
    folder.mkdir()
    config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'was run')!r}, 'w').close()")
    assert "code" in refusal_of(folder)
    assert not (tmp_path / "was run").exists()


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_sentence():
    """Offline, a name on the hub that no cache holds is an error in one line."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", OFFLINE], env=environment, capture_output=True, text=True, check=True)
    assert "the tokenizer some-lab/some-model cannot be loaded" in run.stdout
    assert len(run.stdout.splitlines()) == 1


def test_the_fingerprint_tells_encodings_apart():
    """Another merge, end of a document, added word or token before a document is another fingerprint."""

    def core(**choices) -> Core:
        return Core(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<eos>": 3, "</s>": 4}, **choices))

    plain, merged, added, prefixed = core(merges=[]), core(merges=[("a", "b")]), core(merges=[]), core(merges=[])
    added.add_tokens(["ba"])
    prefixed.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 3)])
    prints = [HuggingfaceTokenizer(each.to_str(), end_of_text="<eos>").fingerprint() for each in (plain, merged, added)]
    prints.append(HuggingfaceTokenizer(plain.to_str(), end_of_text="</s>").fingerprint())
    assert len(set(prints)) == 4
    assert HuggingfaceTokenizer(prefixed.to_str(), end_of_text="<eos>").fingerprint() not in prints


PANICS = {
    "replaces nothing": {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
    "backtracks": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    },
}


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ("replaces nothing", "auto"),
        ("replaces nothing", "huggingface"),
        pytest.param("backtracks", "huggingface", marks=pytest.mark.slow),  # until it gives up
    ],
)
def test_a_tokenizer_that_panics_is_refused(tmp_path, kind, backend):
    """What ends tokenizers, a library in Rust, on a text is one sentence that names the file, loaded or used."""
    record = json.loads(small_tokenizer("gpt-2").to_str()) | PANICS[kind]
    (tmp_path / "bad.json").write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match=r"bad\.json makes the library tokenizers fail \("):
        HuggingfaceTokenizer.load(str(tmp_path / "bad.json"), backend=backend).encode(["a b", f"{'a' * 30}!"])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "WordLevel", "vocab": {"a": 0, "</s>": 1}, "unk_token": "zz"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
    ids=["no-unknown", "no-map"],
)
def test_a_folder_with_a_tokenizer_that_fails_is_refused(tmp_path, changes):
    """An error and a panic of tokenizers, while a folder is loaded or its special tokens are looked at, are refused."""
    record = json.loads(small_tokenizer("gpt-2").to_str()) | changes
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=r"use another tokenizer|cannot be loaded"):
        HuggingfaceTokenizer.load(str(tmp_path)).encode(["b c"])


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": "\ud800"},
        {"model_max_length": "\ud800"},
        {"chat_template": [{"name": "../other", "template": "a"}, {"name": "default", "template": "b"}]},
    ],
    ids=["template", "other", "name"],
)
def test_files_that_cannot_be_written_again_are_refused(tmp_path, config):
    """A description that no checkpoint could hold is refused with its reason before anything is trained."""
    (tmp_path / "tokenizer.json").write_text(small_tokenizer("gpt-2").to_str())
    usual = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(usual | config))
    with pytest.raises(ConfigurationError, match=r"cannot be written into checkpoints \("):
        HuggingfaceTokenizer.load(str(tmp_path))


@pytest.mark.parametrize("name", ["large.json", "tokenizer.json"])
@pytest.mark.parametrize("number", [1 << 27, 2**31, 2**32 - 1])
def test_an_id_that_no_model_has_is_refused(tmp_path, number, name):
    """The message names the token, and no memory is taken for the ids below its own: those are gigabytes."""
    record = json.loads(small_tokenizer("gpt-2").to_str())
    record["model"]["vocab"]["zzz"] = number
    (tmp_path / name).write_text(json.dumps(record))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path if name == "tokenizer.json" else tmp_path / name
    assert f"gives 'zzz' the id {number}" in refusal_of(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19
