"""T19: secrets of the environment, the configuration, URLs and exceptions are nowhere in what a run leaves or says."""

from __future__ import annotations

import base64

import pytest

from tests.support.file_faults import files_under

pytestmark = pytest.mark.slow

CANARY = "CANARY5b1f"
KEY = base64.b64encode((CANARY * 4).encode()[:32]).decode()
ENVIRONMENT = {"HF_TOKEN": f"hf_{CANARY}", "AWS_SECRET_ACCESS_KEY": CANARY, "API_KEY": CANARY, "RUN_KEY": KEY}


def found(home):
    """Return the files, what was said included, that hold a secret as it is or as the variable has it."""
    secrets = [CANARY.encode(), KEY.encode()]
    return [name for name, data in files_under(home).items() if any(secret in data for secret in secrets)]


def assert_nowhere(home):
    """Check that there is much to look through, and no secret in it."""
    names = files_under(home).keys()
    assert {f"default/{name}" for name in ("run.json", "events.jsonl", "audit.jsonl")} <= names
    assert found(home) == []


def test_a_run_with_an_archive_and_a_key_tells_no_secret(runs, home):
    """The run folder, its audit and checkpoints, the archive, and what was said hold no secret of the environment."""
    settings = ("state_store.encryption.key_from=env:RUN_KEY", f"state_store.archive.url={home}/archive")
    result = runs.run(home, *settings, environment=ENVIRONMENT)
    assert result["code"] == 0, (home / "err.log").read_text()
    assert list((home / "archive").rglob("COMMIT"))
    assert_nowhere(home / "runs")
    assert found(home) == []


@pytest.mark.parametrize(
    "setting",
    [
        f"state_store.archive.url=s3://key:{CANARY}@127.0.0.1:9/bucket",
        f"data.path=https://user:{CANARY}@127.0.0.1:9/corpus.jsonl?token={CANARY}",
        f"data.path=s3://{CANARY}:{CANARY}@bucket/x.jsonl",
    ],
)
def test_an_address_with_a_secret_is_told_without_it(runs, home, setting):
    """A run that fails over a URL with a password or a token says so without them, and writes them nowhere."""
    more = ("data.retry.deadline_seconds=0.1",) if setting.startswith("data.path=https") else ()
    result = runs.run(home, setting, *more, environment=ENVIRONMENT)
    assert result["code"] != 0
    assert (home / "err.log").read_text()
    assert found(home) == []


def test_an_error_with_a_secret_is_told_without_it(runs, home):
    """A failure whose message holds a URL with a password leaves it in no event, no audit line and no checkpoint."""
    at = {"phase": "backward", "count": 13, "error": "OSError", "message": f"https://user:{CANARY}@host/x is gone"}
    result = runs.run(home, at=at, environment=ENVIRONMENT)
    assert result["code"] == 1
    assert_nowhere(home / "runs")


def test_an_unexpected_error_is_said_without_its_secret(runs, home):
    """T19: a failure whose message holds a URL with a password is said, traceback and all, without it."""
    at = {"phase": "backward", "count": 13, "error": "OSError", "message": f"https://user:{CANARY}@host/x is gone"}
    assert runs.run(home, at=at, environment=ENVIRONMENT)["code"] == 1
    assert found(home) == []
