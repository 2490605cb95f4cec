"""The contract of ``DocumentEncoder``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.tokenizer import Encoded
    from holdfast.ports.transform import Record

Documents = list[tuple[list[int], list[bool] | None]]

# one encoder serves all examples, and one test all classes that derive it
_across_examples = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)
_TELL = """
import json, sys
from holdfast.ports.transform import Record
encoded = encoder.encode([Record(text, fields) for text, fields in json.load(sys.stdin)])
mask = None if encoded.loss_mask is None else encoded.loss_mask.tolist()
json.dump([encoder.fingerprint(), encoded.ids.tolist(), encoded.offsets.tolist(), mask], sys.stdout)
"""


def documents_in(encoded: Encoded) -> Documents:
    """Return the ids of each document with its loss mask, None if there is none."""
    bounds = zip(encoded.offsets[:-1].tolist(), encoded.offsets[1:].tolist(), strict=True)
    parts = [slice(first, last) for first, last in bounds]
    mask = encoded.loss_mask
    return [(encoded.ids[part].tolist(), None if mask is None else mask[part].tolist()) for part in parts]


class DocumentEncoderContract:
    """The contract of every ``DocumentEncoder``; derive, override the fixtures, and set what follows.

    ``examples`` are records that the encoder accepts, different from each other; ``refused`` are records that it does
    not. ``is_masked`` says whether its documents have a loss mask.
    """

    examples: Sequence[Record] = ()
    refused: Sequence[Record] = ()
    is_masked: bool

    @pytest.fixture
    def new(self) -> Callable[[], DocumentEncoder]:
        """Return a function that creates the encoder under test, equal ones each time."""
        raise NotImplementedError

    @pytest.fixture
    def encoder(self, new: Callable[[], DocumentEncoder]) -> DocumentEncoder:
        """Return the encoder under test."""
        return new()

    @pytest.fixture
    def others(self) -> Sequence[DocumentEncoder]:
        """Return encoders that give other ids or masks: with another tokenizer, or other options."""
        raise NotImplementedError

    @pytest.fixture
    def rebuild(self) -> str:
        """Return Python code for another process that assigns an equal encoder to ``encoder``."""
        raise NotImplementedError

    @_across_examples
    @given(data=st.data())
    def test_a_batch_equals_its_records(self, encoder: DocumentEncoder, data: st.DataObject) -> None:
        """Records in any batch have the documents, with ids and masks, that each has alone, in their order."""
        records = data.draw(st.lists(st.sampled_from(self.examples), max_size=4))
        found = documents_in(encoder.encode(records))
        assert found == [each for record in records for each in documents_in(encoder.encode([record]))]
        assert found == documents_in(encoder.encode(records))

    def test_arrays_have_the_promised_types(self, encoder: DocumentEncoder) -> None:
        """Ids are uint16 or uint32, offsets int64 from 0, the mask bool, and each document has a token."""
        for records in ([], list(self.examples)):
            encoded = encoder.encode(records)
            assert encoded.ids.dtype in {np.dtype(np.uint16), np.dtype(np.uint32)}
            assert encoded.offsets.dtype == np.int64
            counts = np.ones(len(records), np.int64) if encoded.counts is None else encoded.counts
            assert counts.dtype == np.int64
            assert counts.shape == (len(records),)
            assert (counts > 0).all()
            assert encoded.offsets.shape == (counts.sum() + 1,)
            assert (encoded.offsets[0], encoded.offsets[-1]) == (0, len(encoded.ids))
            assert (np.diff(encoded.offsets) > 0).all()
            if encoded.loss_mask is not None:
                assert encoded.loss_mask.dtype == np.dtype(np.bool_)
                assert encoded.loss_mask.shape == encoded.ids.shape

    def test_all_documents_have_a_mask_or_none(self, encoder: DocumentEncoder) -> None:
        """An encoder returns a loss mask for every batch, the empty one too, or for none."""
        batches = [[], list(self.examples), *([record] for record in self.examples)]
        assert [encoder.encode(batch).loss_mask is not None for batch in batches] == [self.is_masked] * len(batches)

    def test_a_record_that_cannot_be_encoded_is_refused(self, encoder: DocumentEncoder) -> None:
        """A bad record raises ``DataError`` alone and among good ones, with a message that continues a sentence."""
        assert self.refused, "the contract needs a record that the encoder refuses"
        for record in self.refused:
            for batch in ([record], [*self.examples, record]):
                with pytest.raises(DataError) as caught:
                    encoder.encode(batch)
                assert str(caught.value)[:1].islower()

    def test_another_process_encodes_alike(self, encoder: DocumentEncoder, rebuild: str) -> None:
        """Fingerprint, ids and masks are the same in another process with another hash seed."""
        asked = json.dumps([[record.text, dict(record.fields)] for record in self.examples])
        told = subprocess.run(  # noqa: S603  of this interpreter
            [sys.executable, "-c", f"{rebuild}\n{_TELL}"],
            input=asked,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "7"},
        ).stdout
        encoded = encoder.encode(self.examples)
        mask: Any = None if encoded.loss_mask is None else encoded.loss_mask.tolist()
        expected = [encoder.fingerprint(), encoded.ids.tolist(), encoded.offsets.tolist(), mask]
        assert json.loads(told.splitlines()[-1]) == expected

    def test_fingerprints_identify_the_encoding(
        self, new: Callable[[], DocumentEncoder], others: Sequence[DocumentEncoder]
    ) -> None:
        """Equal encoders have equal fingerprints, and encoders that give other ids or masks have others."""
        prints = [encoder.fingerprint() for encoder in (new(), *others)]
        assert new().fingerprint() == prints[0]
        assert len(set(prints)) == len(prints) > 1

    def test_several_threads_encode(self, encoder: DocumentEncoder) -> None:
        """Several threads that encode at the same time get the same documents as one thread."""
        expected = documents_in(encoder.encode(self.examples))
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda _: documents_in(encoder.encode(self.examples)), range(24))
            assert all(each == expected for each in found)
