"""Epochs that become steps before the first step."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.bootstrap.run_folder.shared import SharedRunFolder
from holdfast.bootstrap.wiring.epochs_budget import decide_epochs
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from tests.support.streams import Plan, stream_of

CORPUS = {"unit": ["some words", "and more of them", "the last ones"]}
GROWN = {"unit": [*(text * 5 for text in CORPUS["unit"])]}
ROWS = 4


def decided(home, corpus, *, mode="cache", **limits):
    """Return the steps that a start of the run in ``home`` decides on for its ``corpus``."""
    budget, epochs = Budget(**limits), limits.get("epochs")
    settings = TrainSettings(
        data={"kind": "python_library", "sequence_length": 8, "epochs": epochs}, optimizer={"batch_size": ROWS}
    )
    stream = stream_of(corpus, Plan(mode=mode, rows=ROWS, epochs=epochs))
    with closing(SharedRunFolder(home, SingleProcessGroup())) as folder:
        folder.begin(dump_settings(settings))
        decide_epochs(budget, stream, settings, folder)
        folder.write()
    return budget.steps, stream


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_the_steps_are_the_batches_of_all_epochs(tmp_path, epochs):
    """A run has as many steps as its data have batches, of which the last may be smaller."""
    steps, stream = decided(tmp_path, CORPUS, epochs=epochs)
    assert steps == -(-stream.num_rows * epochs // ROWS)


def test_the_same_epochs_keep_their_steps_and_others_begin_again(tmp_path):
    """A resume on grown data ends where the run began to, and other epochs are counted again."""
    steps, _ = decided(tmp_path, CORPUS, epochs=2)
    assert decided(tmp_path, GROWN, epochs=2)[0] == steps
    assert decided(tmp_path, GROWN, epochs=3)[0] > steps


@pytest.mark.parametrize(("limits", "steps"), [({"steps": 5}, 5), ({"tokens": 90}, None), ({"minutes": 2.0}, None)])
def test_another_limit_stands(tmp_path, limits, steps):
    """Where steps, tokens or minutes limit a run, its epochs decide nothing."""
    assert decided(tmp_path, CORPUS, epochs=2, **limits)[0] == steps


def test_streamed_epochs_are_no_length(tmp_path):
    """The batches of a stream cannot be counted, and the error names the ways on."""
    with pytest.raises(ConfigurationError, match=r"data\.epochs=2 alone .* run\.budget\.steps, .* data\.mode=cache"):
        decided(tmp_path, CORPUS, mode="stream", epochs=2)
