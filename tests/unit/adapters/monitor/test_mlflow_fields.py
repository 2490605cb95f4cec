"""Names, settings and packages of the monitor ``mlflow``."""

from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.monitor.mlflow import LONGEST_TAG, cut, decoded, encoded, flat, is_cut, mlflow_tracker
from holdfast.domain.errors import ConfigurationError


def test_a_missing_package_is_told_in_one_sentence(monkeypatch):
    """Without the extra the error names the command that installs it."""
    monkeypatch.setattr(
        "holdfast.adapters.monitor.mlflow.find_spec", lambda name: None if name == "alembic" else object()
    )
    with pytest.raises(ConfigurationError, match=r"pip install \"holdfast-lm\[mlflow\]\""):
        mlflow_tracker()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eval_loss/books", "eval_loss/books"),
        ("arc_easy/acc,none", "arc_easy/acc:2c:none"),
        ("a:b", "a:3a:b"),
        ("", "::"),
        ("..", ":2e::2e:"),
        ("/a", ":2f:a"),
        ("a//b", "a:2f::2f:b"),
        ("漢", ":6f22:"),
    ],
)
def test_names_can_be_read_back(name, expected):
    """Characters that MLflow refuses are escaped, and nothing else is."""
    assert encoded(name) == expected
    assert decoded(expected) == name


@given(name=st.text() | st.text("./: a", max_size=8))
def test_any_name_is_accepted(name):
    """What MLflow checks holds of every name: its characters, a normal relative path, and at most 250 characters."""
    found = encoded(name)
    assert re.fullmatch(r"[/A-Za-z0-9_.\- :]+", found)
    assert posixpath.normpath(found) == found
    assert not found.startswith((".", "/"))
    assert len(found) <= 250
    assert is_cut(found) or decoded(found) == name


def test_a_long_name_is_cut():
    """A name of more than 250 characters ends with a hash, so that two of them do not become one."""
    one, other = encoded("a" * 250 + "b"), encoded("a" * 250 + "c")
    assert is_cut(one)
    assert one != other
    assert not is_cut(encoded("a" * 250))
    assert cut("x" * 6000, LONGEST_TAG) == "x" * (LONGEST_TAG - 10) + " ... (cut)"


def test_settings_are_flat():
    """Nested settings become names with dots, and lists have numbers."""
    settings = {"a": {"b": [1, {"c": "text"}], "empty": {}}, "none": None, "on": True}
    assert flat(settings) == {"a.b.0": "1", "a.b.1.c": "text", "a.empty": "{}", "none": "null", "on": "true"}
