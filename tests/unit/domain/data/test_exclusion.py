"""The choice of documents to train without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data.exclusion import NO_EXCLUSION, Exclusion, id_of, shown_id

IDS = st.integers(0, 2**64 - 1)


@given(st.sets(IDS, max_size=5), st.lists(IDS, max_size=5))
def test_it_holds_its_ids_and_no_others(ids, others):
    """Any order of the ids is the same exclusion, and holds exactly these."""
    hashes = np.array([*ids, *others], np.uint64)
    excluded = Exclusion.of([*ids, *ids])
    assert excluded.holds(hashes).tolist() == [number in ids for number in hashes.tolist()]
    assert (excluded.digest == "") == (not ids)
    assert excluded.digest == Exclusion.of(sorted(ids)).digest
    assert not NO_EXCLUSION.holds(hashes).any()


@given(IDS)
def test_an_id_is_read_as_it_is_shown(document):
    """The text of an id is 16 digits, and in capitals it is the same id."""
    assert id_of(shown_id(document)) == id_of(shown_id(document).upper()) == document


@pytest.mark.parametrize("text", ["", "0" * 15, "0" * 17, "0x00000000000000", "g" * 16, "٣" * 16, " " * 16])
def test_other_text_is_no_id(text):
    """Text that is not 16 hexadecimal digits names no document."""
    assert id_of(text) is None
