"""The contracts of ``Transform`` and ``RecordTransform``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.ports.transform import Dropped, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ports.transform import RecordTransform, Transform

HARD_TEXTS = (
    "",
    " ",
    "\r\n",
    "two lines,\r\none\rmore\n\n",
    "plain words, and  two   spaces \t\n",
    "Grüße, 東京 ٣ नमस्ते e\u0301 \u00e9 \ufb01 \u2126 x\u00b2",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff",
    "\0\x01\x1b[0m\x7f\u200b\u202e\ufeff\ufffd",
    r"\1 \g<0> $1 {0} %s",
    "a" * 3000,
)
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(HARD_TEXTS), max_size=5).map("".join),
)
# one transform serves all examples, and one test all classes that derive it
_across_examples = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)
_TELL = """
import json, sys
texts = json.load(sys.stdin)
json.dump([transform.fingerprint(), [transform(text) for text in texts]], sys.stdout)
"""


_TELL_OF_RECORDS = """
import json, sys
from holdfast.ports.transform import Dropped, Record
asked = [Record(text, fields) for text, fields in json.load(sys.stdin)]
told = [
    ["dropped", each.reason, each.detail] if isinstance(each, Dropped)
    else ["kept", each.text, dict(each.scores), each.warnings]
    for each in transform.apply(asked)
]
json.dump([transform.fingerprint(), told], sys.stdout)
"""


class TransformContract:
    """The contract of every ``Transform``; derive, override the fixtures, and set ``examples`` that it changes.

    All transforms that the function of ``new`` returns must be equal.
    """

    examples: Sequence[str] = ()

    @pytest.fixture
    def new(self) -> Callable[[], Transform]:
        """Return a function that creates the transform under test."""
        raise NotImplementedError

    @pytest.fixture
    def transform(self, new: Callable[[], Transform]) -> Transform:
        """Return the transform under test."""
        return new()

    @pytest.fixture
    def others(self) -> Sequence[Transform]:
        """Return transforms with other results: with other options, or of another version."""
        raise NotImplementedError

    @pytest.fixture
    def rebuild(self) -> str:
        """Return Python code for another process that assigns an equal transform to ``transform``."""
        raise NotImplementedError

    def test_the_examples_are_changed_or_left_out(self, transform: Transform) -> None:
        """The transform changes or drops each of ``examples``."""
        assert self.examples, "the contract needs a text that the transform changes or leaves out"
        assert [text for text in self.examples if transform(text) == text] == []

    @_across_examples
    @given(text=texts)
    def test_gives_valid_text_or_nothing(self, transform: Transform, text: str) -> None:
        """The result for valid Unicode is text that UTF-8 can represent, or None."""
        result: Any = transform(text)
        assert result is None or isinstance(result, str)
        assert result is None or result.encode().decode() == result

    @_across_examples
    @given(before=st.lists(texts, max_size=4), text=texts)
    def test_equal_texts_give_equal_results(
        self, new: Callable[[], Transform], before: Sequence[str], text: str
    ) -> None:
        """The result depends on the text alone, not on earlier calls."""
        first, used = new(), new()
        for earlier in before:
            used(earlier)
        assert first(text) == used(text) == used(text)

    def test_another_process_does_the_same(self, transform: Transform, rebuild: str) -> None:
        """A process with another hash seed gives the same results and the same fingerprint."""
        asked = [*HARD_TEXTS, *self.examples]
        process = subprocess.run(  # noqa: S603 - the caller's own code
            [sys.executable, "-c", rebuild + _TELL],
            input=json.dumps(asked),
            env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout) == [transform.fingerprint(), [transform(text) for text in asked]]

    def test_usable_from_several_threads(self, transform: Transform) -> None:
        """Threads that share a transform get the same results as one thread."""
        asked = [*HARD_TEXTS, *self.examples] * 20
        expected = [transform(text) for text in asked]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: [transform(text) for text in asked], range(8)))
        assert found == [expected] * 8

    def test_the_fingerprint_stays(self, new: Callable[[], Transform]) -> None:
        """The fingerprint is the same for an equal new transform, and after use."""
        used = new()
        before = used.fingerprint()
        for text in self.examples:
            used(text)
        assert before
        assert used.fingerprint() == before == new().fingerprint()

    def test_other_options_are_another_fingerprint(self, transform: Transform, others: Sequence[Transform]) -> None:
        """Transforms with other results have other fingerprints."""
        assert others, "the contract needs a transform of other options"
        fingerprints = [each.fingerprint() for each in (transform, *others)]
        assert len(set(fingerprints)) == len(fingerprints)


class RecordTransformContract:
    """The contract of every ``RecordTransform``; derive, override the fixtures, and set ``examples``.

    ``examples`` are records that the transform changes or drops. All transforms that the function of ``new`` returns
    must be equal.
    """

    examples: Sequence[Record] = ()

    @pytest.fixture
    def new(self) -> Callable[[], RecordTransform]:
        """Return a function that creates the transform under test."""
        raise NotImplementedError

    @pytest.fixture
    def transform(self, new: Callable[[], RecordTransform]) -> RecordTransform:
        """Return the transform under test."""
        return new()

    @pytest.fixture
    def others(self) -> Sequence[RecordTransform]:
        """Return transforms with other results: with other options, or of another version."""
        raise NotImplementedError

    @pytest.fixture
    def rebuild(self) -> str:
        """Return Python code for another process that assigns an equal transform to ``transform``."""
        raise NotImplementedError

    def test_the_examples_are_changed_or_left_out(self, transform: RecordTransform) -> None:
        """The transform changes or drops each of ``examples``, and a drop has a reason."""
        assert self.examples, "the contract needs a record that the transform changes or leaves out"
        results = transform.apply(self.examples)
        assert [record for record, result in zip(self.examples, results, strict=True) if record == result] == []
        assert all(result.reason for result in results if isinstance(result, Dropped))

    def test_no_records_give_no_results(self, transform: RecordTransform) -> None:
        """An empty batch is allowed."""
        assert list(transform.apply([])) == []

    @_across_examples
    @given(some=st.lists(texts, max_size=6))
    def test_gives_valid_text_for_each_record(self, transform: RecordTransform, some: Sequence[str]) -> None:
        """There is one result for each record, and its text is one that UTF-8 can represent."""
        results = transform.apply([Record(text) for text in some])
        assert len(results) == len(some)
        for result in results:
            assert isinstance(result, Record | Dropped)
            assert isinstance(result, Dropped) or result.text.encode().decode() == result.text

    @_across_examples
    @given(some=st.lists(texts, max_size=6))
    def test_a_record_is_judged_alone(self, new: Callable[[], RecordTransform], some: Sequence[str]) -> None:
        """The result for a record depends neither on its neighbors nor on earlier calls."""
        records = [*(Record(text) for text in some), *self.examples]
        used = new()
        alone = [used.apply([record])[0] for record in reversed(records)][::-1]
        assert list(new().apply(records)) == alone == list(used.apply(records))

    def test_another_process_does_the_same(self, transform: RecordTransform, rebuild: str) -> None:
        """A process with another hash seed gives the same results and the same fingerprint."""
        asked = [*(Record(text) for text in HARD_TEXTS), *self.examples]
        process = subprocess.run(  # noqa: S603 - the caller's own code
            [sys.executable, "-c", rebuild + _TELL_OF_RECORDS],
            input=json.dumps([[record.text, dict(record.fields)] for record in asked]),
            env=os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        expected = [
            ["dropped", result.reason, result.detail]
            if isinstance(result, Dropped)
            else ["kept", result.text, dict(result.scores), list(result.warnings)]
            for result in transform.apply(asked)
        ]
        assert json.loads(process.stdout) == [transform.fingerprint(), expected]

    def test_usable_from_several_threads(self, transform: RecordTransform) -> None:
        """Threads that share a transform get the same results as one thread."""
        asked = [*(Record(text) for text in HARD_TEXTS), *self.examples] * 20
        expected = list(transform.apply(asked))
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: list(transform.apply(asked)), range(8)))
        assert found == [expected] * 8

    def test_reads_only_the_fields_that_it_names(self, transform: RecordTransform) -> None:
        """Other fields change no result."""
        names = set(transform.fields)
        more = [Record(each.text, {**{f"other {name}": 1 for name in names}, **each.fields}) for each in self.examples]
        assert [_judged(each) for each in transform.apply(more)] == [
            _judged(each) for each in transform.apply(self.examples)
        ]

    def test_the_fingerprint_stays(self, new: Callable[[], RecordTransform]) -> None:
        """The fingerprint is the same for an equal new transform, and after use."""
        used = new()
        before = used.fingerprint()
        used.apply(self.examples)
        assert before
        assert used.fingerprint() == before == new().fingerprint()

    def test_other_options_are_another_fingerprint(
        self, transform: RecordTransform, others: Sequence[RecordTransform]
    ) -> None:
        """Transforms with other results have other fingerprints."""
        assert others, "the contract needs a transform of other options"
        fingerprints = [each.fingerprint() for each in (transform, *others)]
        assert len(set(fingerprints)) == len(fingerprints)


def _judged(result: Record | Dropped) -> object:
    return result if isinstance(result, Dropped) else (result.text, dict(result.scores), result.warnings)
