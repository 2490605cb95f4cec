"""Where the command line's log goes."""

import io
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from holdfast.bootstrap.process.json_log import configure_logging
from holdfast.bootstrap.stages.open_run.screen import open_screen
from holdfast.configs.settings import TrainSettings


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_lines_go_to_standard_error_as_it_is_when_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was standard error once and is closed by now fails no line."""
    old, new = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", old)
    configure_logging()
    log = structlog.get_logger("holdfast")
    log.info("first")
    monkeypatch.setattr(sys, "stderr", new)
    assert "first" in old.getvalue()
    old.close()
    log.info("second")
    assert "second" in new.getvalue()


def test_a_host_that_has_no_structlog_set_up_gets_lines_in_its_own_logging(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a console monitor the lines for a person go to Python's logging, and nothing is printed."""
    structlog.reset_defaults()
    caplog.set_level(logging.INFO, "holdfast")
    open_screen({"monitors": []}, TrainSettings(), None).say("step 3 · a checkpoint")
    assert caplog.messages == ["step 3 · a checkpoint"]
    assert capsys.readouterr() == ("", "")
