"""Fixtures of the console."""

from __future__ import annotations

import pytest

from tests.support.consoles import Clock


@pytest.fixture(autouse=True)
def _a_plain_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def clock():
    return Clock()
