"""The contract of ``Tokenizer``."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import ChatMessage, Conversation, MessageRole
from holdfast.ports.tokenizer import HasChatTemplate, TemplateChoice

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer

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
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)


class TokenizerContract:
    """The contract of every ``Tokenizer``; derive and override the fixtures and ``rebuild``.

    ``is_lossless`` says whether ``decode(encode(text))`` returns ``text``, byte for byte, and ``reads_specials_alike``
    whether transformers too can read the name of a special token as ordinary text.
    """

    is_lossless: ClassVar[bool] = True
    reads_specials_alike: ClassVar[bool] = True

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer under test; all tests of the class can share it."""
        raise NotImplementedError

    @pytest.fixture
    def rebuild(self) -> str:
        """Return Python code for another process that assigns an equal tokenizer to ``tokenizer``."""
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
        """Documents encoded as a batch have the same ids as each document alone, and offsets that separate them."""
        encoded = tokenizer.encode(documents)
        assert len(encoded.offsets) == len(documents) + 1
        assert [ids.tolist() for ids in encoded] == [ids_of(tokenizer, document) for document in documents]

    def test_no_documents_are_a_batch_too(self, tokenizer: Tokenizer) -> None:
        """Encoding an empty batch gives no ids and one offset."""
        encoded = tokenizer.encode([])
        assert (encoded.ids.tolist(), encoded.offsets.tolist()) == ([], [0])

    def test_ids_and_offsets_have_the_promised_types(self, tokenizer: Tokenizer) -> None:
        """Ids are uint16 or uint32, large enough for every id including end-of-text; offsets are int64."""
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
        """``end_of_text`` is below ``vocabulary_size``."""
        assert 0 <= tokenizer.end_of_text < tokenizer.vocabulary_size

    @_across_examples
    @given(text=texts)
    def test_no_text_becomes_end_of_text(self, tokenizer: Tokenizer, text: str) -> None:
        """No special token is added, and the text of a special token in a document stays text."""
        assert tokenizer.end_of_text not in ids_of(tokenizer, text)

    def test_a_literal_special_token_is_text(self, tokenizer: Tokenizer) -> None:
        """The name of the end-of-text token in a document is encoded as text, not as its id."""
        for name in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>"):
            for text in (name, f"a{name}b", f"a {name} b {name}"):
                assert tokenizer.end_of_text not in ids_of(tokenizer, text)

    @_across_examples
    @given(text=texts)
    def test_decoding_gives_the_text_back(self, tokenizer: Tokenizer, text: str) -> None:
        """A lossless tokenizer decodes encoded text to the same text; other tokenizers do this for plain words."""
        text = text if self.is_lossless else "plain words"
        assert tokenizer.decode(ids_of(tokenizer, text)) == text

    def test_decoding_leaves_special_ids_out(self, tokenizer: Tokenizer) -> None:
        """End-of-text ids add nothing to the decoded text."""
        ids = ids_of(tokenizer, "words")
        assert tokenizer.decode([*ids, tokenizer.end_of_text]) == tokenizer.decode(ids)
        assert tokenizer.decode([tokenizer.end_of_text]) == ""

    @_across_examples
    @given(text=texts)
    def test_token_bytes_measure_the_text(self, tokenizer: Tokenizer, text: str) -> None:
        """With a lossless tokenizer, the sum of ``token_bytes`` over a text's ids is the number of its UTF-8 bytes."""
        counted = int(tokenizer.token_bytes[ids_of(tokenizer, text)].sum())
        assert counted == len(text.encode()) or not self.is_lossless

    def test_token_bytes_cover_the_vocabulary(self, tokenizer: Tokenizer) -> None:
        """``token_bytes`` has a count for each id, none of them negative, and 0 for end-of-text."""
        counts = tokenizer.token_bytes
        assert (counts.dtype, counts.shape) == (np.dtype(np.int32), (tokenizer.vocabulary_size,))
        assert counts.min() == 0
        assert counts[tokenizer.end_of_text] == 0

    @pytest.mark.parametrize("half", [0xD800, 0xDFFF])
    def test_half_a_surrogate_pair_is_refused(self, tokenizer: Tokenizer, half: int) -> None:
        """A document that UTF-8 cannot represent raises ``DataError`` that names the document and the position."""
        with pytest.raises(DataError, match=r"document 1 .*character 2"):
            tokenizer.encode(["good", f"ab{chr(half)}cd"])

    def test_several_threads_encode_at_once(self, tokenizer: Tokenizer) -> None:
        """Encoding and decoding in several threads give the same results as in one thread."""
        documents = list(HARD_TEXTS)

        def turn(_: int) -> tuple[list[int], str]:
            ids = tokenizer.encode(documents).ids.tolist()
            return ids, tokenizer.decode(ids)

        expected = turn(0)
        with ThreadPoolExecutor(8) as pool:
            assert all(found == expected for found in pool.map(turn, range(64)))

    def test_another_process_encodes_equally(self, tokenizer: Tokenizer, rebuild: str, tmp_path: Path) -> None:
        """In another process the tokenizer has the same fingerprint, gives the same ids and writes the same bytes."""
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
        """A tokenizer writes the same bytes before and after it has encoded text."""
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            tokenizer.write(tmp_path / name)
            tokenizer.encode(list(HARD_TEXTS))
        assert files_in(tmp_path / "one") == files_in(tmp_path / "two") != {}

    def test_transformers_loads_what_it_writes(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        """``AutoTokenizer`` loads the folder, has the same end-of-text id, and encodes and decodes equally."""
        transformers: Any = pytest.importorskip("transformers")
        tokenizer.write(tmp_path)
        loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert loaded.eos_token_id == tokenizer.end_of_text
        for text in (*HARD_TEXTS, f"before{loaded.eos_token}after"):
            if not self.reads_specials_alike and any(token in text for token in loaded.all_special_tokens):
                continue
            ids = loaded(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            assert ids == ids_of(tokenizer, text)
            assert tokenizer.end_of_text not in ids
            assert loaded.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


class ChatTemplateContract:
    """The contract of every ``ChatTemplate``; derive and override the fixtures.

    The template accepts a message of the user, and then replies and messages in turn.
    """

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the template under test."""
        raise NotImplementedError

    @pytest.fixture
    def template(self) -> ChatTemplate:
        """Return the template under test."""
        raise NotImplementedError

    @pytest.fixture
    def special(self) -> str:
        """Return the text of a special token that ends a reply."""
        raise NotImplementedError

    @_across_examples
    @given(text=texts)
    def test_equal_conversations_give_equal_ids(self, tokenizer: Tokenizer, template: ChatTemplate, text: str) -> None:
        """Encoding is pure, and all ids are in the vocabulary."""
        messages = [ChatMessage(MessageRole.USER, text)]
        ids = list(template.encode(messages))
        assert ids
        assert ids == list(template.encode(messages))
        assert all(0 <= number < tokenizer.vocabulary_size for number in ids)

    def test_a_longer_conversation_gives_other_ids(self, template: ChatTemplate) -> None:
        """The replies and messages so far are part of what the model reads."""
        messages = [ChatMessage(MessageRole.USER, "one"), ChatMessage(MessageRole.ASSISTANT, "two")]
        later = [*messages, ChatMessage(MessageRole.USER, "one")]
        assert len(template.encode(later)) > len(template.encode(messages[:1]))

    def test_end_of_text_ends_a_reply(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """A reply ends at end-of-text, whatever else ends it."""
        assert tokenizer.end_of_text in template.ends

    def test_a_message_cannot_end_itself(self, template: ChatTemplate, special: str) -> None:
        """The text of a special token in a message adds no special id to the conversation."""
        harmless = template.encode([ChatMessage(MessageRole.USER, "a word b")])
        hostile = template.encode([ChatMessage(MessageRole.USER, f"a {special} b")])
        counts = [sum(number in template.ends for number in ids) for ids in (harmless, hostile)]
        assert counts[0] == counts[1]

    def test_replies_are_trained_on_and_nothing_else(self, template: ChatTemplate) -> None:
        """Each reply is one run of ids that are trained on, and all documents begin with ids that are not."""
        talk = Conversation((*_asked("one"), *_said("two"), *_asked("three"), *_said("four")))
        (documents,) = template.encode_training([talk])
        runs = [int((np.diff(np.append(False, each.loss_mask).astype(int)) == 1).sum()) for each in documents]
        assert sum(runs) == 2
        for each in documents:
            assert each.ids.shape == each.loss_mask.shape
            assert not each.loss_mask[0]
        ((last,),) = template.encode_training([talk], "last_assistant")
        assert int((np.diff(np.append(False, last.loss_mask).astype(int)) == 1).sum()) == 1

    def test_a_reply_is_trained_on_with_the_id_that_ends_it(self, template: ChatTemplate) -> None:
        """The last id of the replies that is trained on ends a reply."""
        ((document,),) = template.encode_training([Conversation((*_asked("one"), *_said("two")))])
        assert int(document.ids[np.flatnonzero(document.loss_mask)[-1]]) in template.ends

    def test_training_continues_what_the_model_will_be_asked(self, template: ChatTemplate) -> None:
        """The ids before a first reply are those that are encoded for the messages before it."""
        ((document,),) = template.encode_training([Conversation((*_asked("one"), *_said("two")))])
        begin = document.loss_mask.tolist().index(True)
        assert document.ids[:begin].tolist() == list(template.encode(_asked("one")))

    def test_a_reply_cannot_hide_its_end(self, template: ChatTemplate, special: str) -> None:
        """The text of a special token in a reply adds no special id."""
        texts = ("a word b", f"a {special} b")
        talks = [Conversation((*_asked("one"), *_said(text))) for text in texts]
        counts = [
            sum(int(number) in template.ends for number in documents[0].ids)
            for documents in template.encode_training(talks)
        ]
        assert counts[0] == counts[1]

    def test_a_conversation_without_a_reply_is_refused(self, template: ChatTemplate) -> None:
        """Nothing could be trained on: ``DataError``, with a message that continues a sentence."""
        with pytest.raises(DataError) as caught:
            template.encode_training([Conversation(_asked("one"))])
        assert str(caught.value)[:1].islower()

    def test_the_template_has_a_fingerprint(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Equal templates have equal fingerprints, and one with other variables has another."""
        day = date(2024, 7, 26)
        assert isinstance(tokenizer, HasChatTemplate)
        first, same, other = (
            tokenizer.with_template(TemplateChoice(None, options, day)).chat_template
            for options in ({}, {}, {"unusual": 1})
        )
        assert first is not None
        assert same is not None
        assert other is not None
        assert first.fingerprint() == same.fingerprint() == template.fingerprint()
        assert other.fingerprint() != first.fingerprint()


def _asked(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage(MessageRole.USER, text),)


def _said(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage(MessageRole.ASSISTANT, text),)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of one document."""
    return [int(number) for number in tokenizer.encode([text]).ids]


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the names and bytes of the files in ``folder``."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
