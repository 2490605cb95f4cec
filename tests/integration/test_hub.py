"""A hub that does not answer is told at once, and what is kept on the machine is used without it."""

import json
import time

import pytest
from huggingface_hub import constants

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.network import hub
from holdfast.bootstrap.stages.open_run.hub_choice import one_hub
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError

NOBODY = "http://127.0.0.1:9"  # discard, where nobody listens


@pytest.fixture
def silent(monkeypatch, tmp_path):
    """Have the hub be where nobody answers, and the cache be ``tmp_path``."""
    monkeypatch.setattr(constants, "ENDPOINT", NOBODY)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_hub_that_does_not_answer_is_asked_once(silent, monkeypatch):
    """Where nothing of a name is kept, one sentence says so, and no library waits and asks again for half a minute."""
    asked, waited, session = [], [], hub.get_session
    monkeypatch.setattr(hub, "get_session", lambda: asked.append(1) or session())
    monkeypatch.setattr(time, "sleep", waited.append)
    hub._answers.cache_clear()
    with pytest.raises(ConfigurationError, match=r"cannot be reached, and some/model is not .*HF_HUB_OFFLINE"):
        hub.reached("some/model", None)
    assert (len(asked), waited) == (1, [])
    assert not list(silent.iterdir())


@pytest.fixture
def kept(silent):
    """Have files of two models be kept on this machine, of the commit ``0123``."""
    for name in ("some", "another"):
        folder = silent / f"models--{name}--model"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs/main").write_text("0123")
        (folder / "snapshots/0123").mkdir(parents=True)
        (folder / "snapshots/0123/config.json").write_text("{}")


@pytest.mark.usefixtures("kept")
def test_what_is_kept_is_used_without_the_hub(caplog):
    """Where a name is kept, its files are taken as they are, and it is told once that the hub may have newer ones."""
    assert hub.reached("some/model", None) == {"local_files_only": True}
    assert hub.reached("some/model", None) == {"local_files_only": True}
    (told,) = (record.getMessage() for record in caplog.records if record.name == hub.__name__)
    assert "some/model" in told
    assert "did not answer" in told


def test_a_folder_asks_no_hub(silent):
    """A path on this machine is nothing to ask a hub for."""
    assert hub.reached(str(silent), None) == {}


class Rank(SingleProcessGroup):
    """A rank of two; ``told`` is what the first one says, or what it said if it is this one."""

    def __init__(self, rank, told=None):
        self._rank, self.told = rank, told

    rank = property(lambda self: self._rank)
    size = property(lambda self: 2)

    def gather(self, text):
        self.told = self.told or text
        return [self.told, text]


def on(group, tmp_path, path="some/model"):
    """Return how a run of two ranks is parted from the hub on this one."""
    settings = TrainSettings(model={"kind": "huggingface", "path": path}, run={"dir": str(tmp_path / "run")})
    return one_hub(settings, group)


@pytest.mark.usefixtures("kept")
def test_all_ranks_take_the_files_that_the_first_one_finds(monkeypatch, tmp_path):
    """Another rank is told to take the first one's commit, without a look at what the hub or its own disk has."""
    first = Rank(0)
    with on(first, tmp_path, "another/model"):
        pass
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    with on(Rank(1, first.told), tmp_path, "another/model"):
        assert hub.reached("another/model", None) == {"local_files_only": True, "revision": "0123"}
    with pytest.raises(ConfigurationError):
        hub.reached("another/model", None)


def test_what_the_first_rank_cannot_reach_no_rank_takes(silent, tmp_path):
    """Each rank says in the same sentence that the hub cannot be reached, and none waits for another."""
    first = Rank(0)
    for group in (first, Rank(1, first.told)):
        group.told = group.told or first.told
        with pytest.raises(ConfigurationError, match="the hub cannot be reached, and some/model"), on(group, tmp_path):
            pass
    assert json.loads(first.told).keys() == {"refused"}


def test_a_folder_is_no_matter_of_the_hub(tmp_path):
    """Where model and tokenizer are on this machine, the ranks say nothing to each other."""
    group = Rank(0)
    with on(group, tmp_path, path=str(tmp_path)):
        assert group.told is None
