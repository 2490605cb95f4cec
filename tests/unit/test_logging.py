"""Where the command line's log goes."""

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from bootstrap.logging import configure_logging


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
