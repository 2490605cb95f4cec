"""Parts of a host: its tokenizer is checked before a run learns with it, and refusals say what a host can do."""

import json

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from tests.support.command_line import corpus, tiny


class HostTokenizer(ForwardingTokenizer):
    """Encodes as bytes, and writes what ``write`` writes."""

    def __init__(self, write):
        super().__init__(MemoryTokenizer())
        self._write = write

    def write(self, folder):
        self._write(folder)


def words_only(folder):
    """Write a file that no library knows."""
    (folder / "words.txt").write_text("a b c")


def of_another(folder):
    """Write the files of a tokenizer in which two letters have the ids of each other."""
    MemoryTokenizer().write(folder)
    record = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = record["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(record))


def other_end(folder):
    """Write the files of a tokenizer without a token that ends a document."""
    MemoryTokenizer().write(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def train(home, write, steps=1):
    """Train a run with the tokenizer to ``steps``; return the step it reaches."""
    overrides = tiny(home / "corpus.jsonl", f"run.dir={home / 'run'}", f"run.budget.steps={steps}", "monitors=[]")
    run = build(load_settings([], overrides, {}).settings, report=lambda _: None, tokenizer=HostTokenizer(write))
    return run.run().step


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (words_only, r"AutoTokenizer cannot load the files that the tokenizer HostTokenizer writes \(.*write give a"),
        (of_another, "are those of another tokenizer, as AutoTokenizer loads them and gives other ids for"),
        (other_end, "and its eos_token has the id None, not 256"),
    ],
)
def test_a_tokenizer_whose_files_are_of_no_use_is_refused_before_the_first_step(tmp_path, write, said):
    """Nobody could use the model with the files in its checkpoints and exports; the sentence says what to change."""
    corpus(tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        train(tmp_path, write)
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_run_that_began_is_not_refused(tmp_path):
    """A run continues with the tokenizer that it has, whatever that writes."""
    corpus(tmp_path)
    assert train(tmp_path, MemoryTokenizer().write) == 1
    assert train(tmp_path, words_only, steps=2) == 2


def train_on(home, text, **options):
    """Train one step more on documents of the host; return the step."""
    steps = 1 + len([*(home / "run/checkpoints").glob("*")])
    overrides = tiny(home / "none.jsonl", f"run.dir={home / 'run'}", f"run.budget.steps={steps}", "monitors=[]")
    source = MemoryDataSource({"unit": [f"{text} {number} " * 20 for number in range(40)]})
    settings = load_settings([], overrides, {}).settings
    return build(settings, report=lambda _: None, data_source=source, **options).run().step


def test_a_host_is_told_how_it_goes_on_with_changed_data(tmp_path):
    """The sentence speaks of its source, which has no files, and both ways that it names are arguments of build."""
    assert train_on(tmp_path, "one") == 1
    said = (
        r"the fingerprint of their source is another one.*"
        r"continue .* --accept-changed-data \(in Python accept_changed_data=True\).* --fresh \(in Python fresh=True\)"
    )
    with pytest.raises(StateError, match=said):
        train_on(tmp_path, "two")
    assert train_on(tmp_path, "two", accept_changed_data=True) == 2
    assert train_on(tmp_path, "three", fresh=True) == 3
