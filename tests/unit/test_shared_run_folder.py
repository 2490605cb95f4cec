import json
from contextlib import closing

import pytest

from adapters.process_group.single import SingleProcessGroup
from bootstrap.ranks import SharedRunFolder
from domain.errors import StateError

SETTINGS = {
    "model": {"kind": "decoder"},
    "optimizer": {"learning_rate": 0.1},
    "run": {"seed": 1},
    "monitors": ["console"],
}


class TwoRanks(SingleProcessGroup):
    """The first of two ranks, of which the other one was given ``theirs``."""

    def __init__(self, theirs):
        self.theirs = theirs

    def gather(self, text):
        mine = json.loads(text)
        return [text, json.dumps({name: self.theirs.get(name) for name in mine})]


@pytest.mark.parametrize("theirs", [{**SETTINGS, "monitors": []}, SETTINGS])
def test_ranks_may_differ_in_what_no_step_depends_on(theirs, tmp_path):
    """Equal settings of model, optimizer and data are enough."""
    with closing(SharedRunFolder(tmp_path, TwoRanks(theirs))) as folder:
        folder.begin(SETTINGS)
        folder.write()
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["model"] == SETTINGS["model"]


@pytest.mark.parametrize("section", ["model", "optimizer"])
def test_ranks_that_would_take_other_steps_are_refused(section, tmp_path):
    """A rank that was given another model or optimizer is named before anything is trained."""
    with (
        closing(SharedRunFolder(tmp_path, TwoRanks({**SETTINGS, section: {"other": 1}}))) as folder,
        pytest.raises(StateError, match=f"settings of {section} of rank 1"),
    ):
        folder.begin(SETTINGS)
