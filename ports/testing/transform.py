"""The contract of ``Transform``."""

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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.ports.transform import Transform

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
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)
_TELL = """
import json, sys
texts = json.load(sys.stdin)
json.dump([transform.fingerprint(), [transform(text) for text in texts]], sys.stdout)
"""


class TransformContract:
    """What every ``Transform`` promises; derive and override the fixtures, and give ``examples`` that it changes.

    ``new`` must return a transform that does the same each time it is called.
    """

    examples: Sequence[str] = ()

    @pytest.fixture
    def new(self) -> Callable[[], Transform]:
        """Return a function that makes the transform under test."""
        raise NotImplementedError

    @pytest.fixture
    def transform(self, new: Callable[[], Transform]) -> Transform:
        """Return the transform under test."""
        return new()

    @pytest.fixture
    def others(self) -> Sequence[Transform]:
        """Return transforms that do something else: of other options, or of another version."""
        raise NotImplementedError

    @pytest.fixture
    def rebuild(self) -> str:
        """Return Python code that leaves in ``transform`` what ``new`` makes, run in another process."""
        raise NotImplementedError

    def test_the_examples_are_changed_or_left_out(self, transform: Transform) -> None:
        """A transform does something: each example comes back as another text, or not at all."""
        assert self.examples, "the contract needs a text that the transform changes or leaves out"
        assert [text for text in self.examples if transform(text) == text] == []

    @_across_examples
    @given(text=texts)
    def test_gives_valid_text_or_nothing(self, transform: Transform, text: str) -> None:
        """What comes back of valid Unicode is text that UTF-8 can hold, or None."""
        result: Any = transform(text)
        assert result is None or isinstance(result, str)
        assert result is None or result.encode().decode() == result

    @_across_examples
    @given(before=st.lists(texts, max_size=4), text=texts)
    def test_equal_texts_give_equal_results(
        self, new: Callable[[], Transform], before: Sequence[str], text: str
    ) -> None:
        """The result depends on the text alone, not on what was transformed before it."""
        first, used = new(), new()
        for earlier in before:
            used(earlier)
        assert first(text) == used(text) == used(text)

    def test_another_process_does_the_same(self, transform: Transform, rebuild: str) -> None:
        """A process that seeds its hashes otherwise gives the same results and the same fingerprint."""
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
        """Threads that share a transform get what one thread gets."""
        asked = [*HARD_TEXTS, *self.examples] * 20
        expected = [transform(text) for text in asked]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: [transform(text) for text in asked], range(8)))
        assert found == [expected] * 8

    def test_the_fingerprint_stays(self, new: Callable[[], Transform]) -> None:
        """The same transform has the same fingerprint, made again or used before."""
        used = new()
        before = used.fingerprint()
        for text in self.examples:
            used(text)
        assert before
        assert used.fingerprint() == before == new().fingerprint()

    def test_other_options_are_another_fingerprint(self, transform: Transform, others: Sequence[Transform]) -> None:
        """Transforms that do something else have fingerprints of their own."""
        assert others, "the contract needs a transform of other options"
        fingerprints = [each.fingerprint() for each in (transform, *others)]
        assert len(set(fingerprints)) == len(fingerprints)
