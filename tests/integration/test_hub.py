"""A hub that does not answer is told at once, and what is kept on the machine is used without it."""

import time

import pytest
from huggingface_hub import constants

from adapters.shared import hub
from domain.errors import ConfigurationError

NOBODY = "http://127.0.0.1:9"  # discard, where nobody listens


@pytest.fixture
def silent(monkeypatch, tmp_path):
    """Have the hub be where nobody answers, and the cache be ``tmp_path``."""
    monkeypatch.setattr(constants, "ENDPOINT", NOBODY)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_hub_that_does_not_answer_is_told_within_seconds(silent):
    """Where nothing of a name is kept, one sentence says so, and no library asks again for half a minute."""
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"cannot be reached, and some/model is not .*HF_HUB_OFFLINE"):
        hub.reached("some/model", None)
    assert time.monotonic() - began < 10
    assert not list(silent.iterdir())


def test_what_is_kept_is_used_without_the_hub(silent, caplog):
    """Where a name is kept, its files are taken as they are, and it is told once that the hub may have newer ones."""
    kept = silent / "models--some--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("0123")
    (kept / "snapshots/0123").mkdir(parents=True)
    (kept / "snapshots/0123/config.json").write_text("{}")
    assert hub.reached("some/model", None) == {"local_files_only": True}
    assert hub.reached("some/model", None) == {"local_files_only": True}
    (told,) = (record.getMessage() for record in caplog.records if record.name == hub.__name__)
    assert "some/model" in told
    assert "did not answer" in told


def test_a_folder_asks_no_hub(silent):
    """A path on this machine is nothing to ask a hub for."""
    assert hub.reached(str(silent), None) == {}
