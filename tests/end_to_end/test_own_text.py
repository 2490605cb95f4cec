"""The tutorial on own text, followed word for word in an empty folder."""

from __future__ import annotations

import re

import pytest

from tests.support.followed_pages import commands_of, follow, write_files

PAGE = "docs/getting-started.md#Own text to a model"
PROMISED = {
    "make_texts.py": ["texts in texts", "texts in notes.csv", "texts in articles.jsonl"],
    " doctor ": ["data.sources.notes.path"],
    " plan ": ["parameters", "a measured peak of", "steps "],
    " train ": ["finished 200 steps", "try next:"],
    " generate ": ["The "],
    "evaluate runs/own": ["bits per byte", "nats/token"],
}
"""Parts of what each command prints."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_own_text_becomes_a_model_that_has_learned(tmp_path):
    """Each command of the page works as printed, and the loss on held-out and on other text falls by a nat or more."""
    assert write_files(PAGE, tmp_path) == ["make_texts.py", "own.yaml"]
    commands = commands_of(PAGE)
    assert len(commands) == 7
    outputs = {}
    for command in commands:
        outputs[command] = follow(command, tmp_path)
        for part, promised in PROMISED.items():
            if part in command:
                assert all(words in outputs[command] for words in promised), f"{command}\n{outputs[command]}"
    assert len(list((tmp_path / "texts").glob("*.txt"))) > 20
    (trained,) = (output for command, output in outputs.items() if " train " in command)
    losses = [float(number) for number in re.findall(r"eval (\d+\.\d+)", trained)]
    assert losses[-1] < losses[0] - 1
    (other,) = (output for command, output in outputs.items() if "--data" in command)
    assert float(re.search(r"(\d+\.\d+) nats", other)[1]) < losses[0] - 1
