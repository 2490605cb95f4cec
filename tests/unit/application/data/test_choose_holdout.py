"""There is something to evaluate on wherever that can be."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.application.data.choose_holdout import choose_holdout
from holdfast.domain.data.holdout import Holdout


@settings(deadline=None)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=12),
    fraction=st.floats(0.0, 0.5),
    seed=st.integers(0, 2**32),
)
def test_some_documents_are_held_and_some_are_not(texts, fraction, seed):
    """Of two documents or more at least one is held out, unless none is wanted; a single one is trained on."""
    said = []
    holdout = choose_holdout(MemoryDataSource({"unit": texts}), Holdout(fraction, seed), said.append)
    held = {text for text in texts if holdout.holds_text(text)}
    if fraction == 0.0:
        assert not held
    elif len(set(texts)) > 1:
        assert held
        assert len(held) == 1 or not said
    else:
        assert not held or not said


def test_chance_is_told():
    """Where the share would have held nothing, one document is held and the user is told."""
    said = []
    source = MemoryDataSource({"unit": ["one", "two", "three"]})
    holdout = choose_holdout(source, Holdout(1e-9, 0), said.append)
    assert sum(holdout.holds_text(text) for text in ("one", "two", "three")) == 1
    assert "one of them is held out" in said[0]
