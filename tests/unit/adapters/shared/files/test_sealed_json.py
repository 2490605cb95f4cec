"""JSON that was changed after it was sealed is found."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.shared.files.regular_file import sealed, unsealed

MEMBERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda name: name != "hash"), MEMBERS))
def test_what_was_sealed_is_what_is_unsealed(record):
    """Any JSON object comes back as it was, sealed once or again."""
    written = json.dumps(sealed(sealed(record)))
    assert unsealed(json.loads(written)) == json.loads(json.dumps(record))


def test_an_object_of_an_earlier_version_has_no_hash():
    """It is taken as it is."""
    assert unsealed({"a": 1}) == {"a": 1}


@pytest.mark.parametrize("change", [{"a": 2}, {"b": 1}, {"hash": "0"}, {"hash": None}])
def test_other_members_are_refused(change):
    """A member that is another or new, and another hash, are not what was written."""
    with pytest.raises(ValueError, match="is not what was written"):
        unsealed(sealed({"a": 1}) | change)
