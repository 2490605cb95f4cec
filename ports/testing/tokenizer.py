"""The contract of ``Tokenizer``."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.ports.tokenizer import Tokenizer

HARD_TEXTS = (
    "",
    " ",
    "plain words, and  two   spaces \t\r\n\n tabs and lines ",
    "for i in range(10):\n\t\tprint(i ** 2)  # 100,000.5e-3",
    "Grüße, 東京 ٣ नमस्ते e\u0301 \u00e9 \ufb01 \u2126",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \U0010ffff",
    "\0\x01\x1b[0m\x7f\u200b\u202e\ufeff\ufffd",
    "a" * 3000 + "=" * 300,
    "<|endoftext|>",
    "before<|endoftext|>after </s> <s> <eos> [SEP] <|im_start|> <0x41> ▁",
)
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from([*HARD_TEXTS, "the ", "\n", "</s>"]), max_size=5).map("".join),
)
# one tokenizer serves all examples, and one test all classes that derive it
_across_examples = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)


class TokenizerContract:
    """What every ``Tokenizer`` promises; derive, and override the fixtures and ``rebuild``.

    ``is_lossless`` says whether ``decode`` gives back what ``encode`` took, byte for byte.
    """

    is_lossless: ClassVar[bool] = True

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer under test; one for the whole class will do."""
        raise NotImplementedError

    @pytest.fixture
    def rebuild(self) -> str:
        """Return Python code that leaves in ``tokenizer`` one that encodes equally, run in another process."""
        raise NotImplementedError

    @_across_examples
    @given(documents=st.lists(texts, max_size=4))
    def test_equal_documents_give_equal_ids(self, tokenizer: Tokenizer, documents: list[str]) -> None:
        """Encoding is pure: the same documents give the same ids each time."""
        first, second = tokenizer.encode(documents), tokenizer.encode(documents)
        assert np.array_equal(first.ids, second.ids)
        assert np.array_equal(first.offsets, second.offsets)

    @_across_examples
    @given(documents=st.lists(texts, max_size=4))
    def test_a_batch_equals_its_documents(self, tokenizer: Tokenizer, documents: list[str]) -> None:
        """Documents encoded together have the ids of each one encoded alone, and offsets that part them."""
        encoded = tokenizer.encode(documents)
        assert len(encoded.offsets) == len(documents) + 1
        assert [ids.tolist() for ids in encoded] == [ids_of(tokenizer, document) for document in documents]

    def test_no_documents_are_a_batch_too(self, tokenizer: Tokenizer) -> None:
        """Encoding nothing gives no ids and one offset."""
        encoded = tokenizer.encode([])
        assert (encoded.ids.tolist(), encoded.offsets.tolist()) == ([], [0])

    def test_ids_and_offsets_have_the_promised_types(self, tokenizer: Tokenizer) -> None:
        """Ids are uint16 or uint32 and can hold every id, end-of-text too; offsets are int64."""
        for documents in ([], list(HARD_TEXTS)):
            encoded = tokenizer.encode(documents)
            assert encoded.ids.dtype in {np.dtype(np.uint16), np.dtype(np.uint32)}
            assert np.iinfo(encoded.ids.dtype).max >= tokenizer.vocabulary_size - 1
            assert encoded.offsets.dtype == np.int64
            assert (encoded.offsets[0], encoded.offsets[-1]) == (0, len(encoded.ids))

    @_across_examples
    @given(text=texts)
    def test_ids_lie_in_the_vocabulary(self, tokenizer: Tokenizer, text: str) -> None:
        """Every id is below ``vocabulary_size``."""
        assert all(0 <= number < tokenizer.vocabulary_size for number in ids_of(tokenizer, text))

    def test_end_of_text_lies_in_the_vocabulary(self, tokenizer: Tokenizer) -> None:
        """The id that ends a document is one of the vocabulary."""
        assert 0 <= tokenizer.end_of_text < tokenizer.vocabulary_size

    @_across_examples
    @given(text=texts)
    def test_no_text_becomes_end_of_text(self, tokenizer: Tokenizer, text: str) -> None:
        """No special token is added, and one written out in a document is text."""
        assert tokenizer.end_of_text not in ids_of(tokenizer, text)

    def test_a_literal_special_token_is_text(self, tokenizer: Tokenizer) -> None:
        """What end-of-text is called, written out in a document, does not end it."""
        for name in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"):
            for text in (name, f"a{name}b", f"a {name} b {name}"):
                assert tokenizer.end_of_text not in ids_of(tokenizer, text)

    @_across_examples
    @given(text=texts)
    def test_decoding_gives_the_text_back(self, tokenizer: Tokenizer, text: str) -> None:
        """A lossless tokenizer decodes what it encoded to the same text; any other one does for plain words."""
        text = text if self.is_lossless else "plain words"
        assert tokenizer.decode(ids_of(tokenizer, text)) == text

    def test_decoding_leaves_special_ids_out(self, tokenizer: Tokenizer) -> None:
        """End-of-text among the ids is not part of the text."""
        ids = ids_of(tokenizer, "words")
        assert tokenizer.decode([*ids, tokenizer.end_of_text]) == tokenizer.decode(ids)
        assert tokenizer.decode([tokenizer.end_of_text]) == ""

    @_across_examples
    @given(text=texts)
    def test_token_bytes_measure_the_text(self, tokenizer: Tokenizer, text: str) -> None:
        """In a lossless tokenizer the bytes of a text's tokens are the bytes of the text."""
        counted = int(tokenizer.token_bytes[ids_of(tokenizer, text)].sum())
        assert counted == len(text.encode()) or not self.is_lossless

    def test_token_bytes_cover_the_vocabulary(self, tokenizer: Tokenizer) -> None:
        """There is a count for each id, none negative, 0 for end-of-text."""
        counts = tokenizer.token_bytes
        assert (counts.dtype, counts.shape) == (np.dtype(np.int32), (tokenizer.vocabulary_size,))
        assert counts.min() == 0
        assert counts[tokenizer.end_of_text] == 0

    @pytest.mark.parametrize("half", [0xD800, 0xDFFF])
    def test_half_a_surrogate_pair_is_refused(self, tokenizer: Tokenizer, half: int) -> None:
        """A document that UTF-8 cannot hold is an error that says which one and where, not other text."""
        with pytest.raises(DataError, match=r"document 1 .*character 2"):
            tokenizer.encode(["good", f"ab{chr(half)}cd"])

    def test_several_threads_encode_at_once(self, tokenizer: Tokenizer) -> None:
        """Encoding and decoding in several threads gives what one thread gives."""
        documents = list(HARD_TEXTS)

        def turn(_: int) -> tuple[list[int], str]:
            ids = tokenizer.encode(documents).ids.tolist()
            return ids, tokenizer.decode(ids)

        expected = turn(0)
        with ThreadPoolExecutor(8) as pool:
            assert all(found == expected for found in pool.map(turn, range(64)))

    def test_another_process_encodes_equally(self, tokenizer: Tokenizer, rebuild: str, tmp_path: Path) -> None:
        """Built in another process it has the same fingerprint, gives the same ids and writes the same bytes."""
        here, there = tmp_path / "here", tmp_path / "there"
        here.mkdir()
        there.mkdir()
        text = "plain words, Grüße, 東京 and <|endoftext|>"
        code = (
            f"{rebuild}\nfrom pathlib import Path\ntokenizer.write(Path({str(there)!r}))\n"
            f"print(tokenizer.fingerprint(), tokenizer.encode([{text!r}]).ids.tolist())"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        assert run.returncode == 0, run.stderr
        tokenizer.write(here)
        assert run.stdout.strip().splitlines()[-1] == f"{tokenizer.fingerprint()} {ids_of(tokenizer, text)}"
        assert files_in(there) == files_in(here) != {}

    def test_it_writes_the_same_bytes_each_time(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        """Two folders written by one tokenizer, which encoded in between, are equal."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            tokenizer.write(tmp_path / name)
            tokenizer.encode(list(HARD_TEXTS))
        assert files_in(tmp_path / "one") == files_in(tmp_path / "two") != {}

    def test_transformers_loads_what_it_writes(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        """``AutoTokenizer`` loads the folder, ends documents with the same id, encodes and decodes equally."""
        transformers: Any = pytest.importorskip("transformers")
        tokenizer.write(tmp_path)
        loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert loaded.eos_token_id == tokenizer.end_of_text
        for text in (*HARD_TEXTS, f"before{loaded.eos_token}after"):
            ids = loaded(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            assert ids == ids_of(tokenizer, text)
            assert tokenizer.end_of_text not in ids
            assert loaded.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of one document."""
    return [int(number) for number in tokenizer.encode([text]).ids]


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the names and bytes of the files in ``folder``."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
