"""Every document encoder keeps the port's promise."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.adapters.document_encoder.chat import ChatDocumentEncoder
from holdfast.adapters.document_encoder.completion import CompletionDocumentEncoder
from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder
from holdfast.adapters.document_encoder.preference import PreferenceDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.domain.data.preference_pairs import rejected_starts
from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import (
    ChatMessage,
    Conversation,
    MessageRole,
    completion_text,
    conversation_text,
)
from holdfast.domain.training.preference_record import preference_of, preference_text
from holdfast.ports.testing.document_encoder import DocumentEncoderContract
from holdfast.ports.testing.tokenizer import HARD_TEXTS
from holdfast.ports.transform import Record
from tests.support.chat_fixtures import templated
from tests.support.encoders import BackwardsTokenizer

HALF = Record("half of a pair: \ud800")


class TestTextDocumentEncoder(DocumentEncoderContract):
    examples = tuple(Record(text) for text in HARD_TEXTS if text)
    refused = (HALF,)
    is_masked = False

    @pytest.fixture
    def new(self):
        return lambda: TextDocumentEncoder(MemoryTokenizer())

    @pytest.fixture
    def others(self):
        return [TextDocumentEncoder(BackwardsTokenizer())]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.document_encoder.text import TextDocumentEncoder\n"
            "from holdfast.adapters.tokenizer.memory import MemoryTokenizer\n"
            "encoder = TextDocumentEncoder(MemoryTokenizer())"
        )

    def test_each_text_is_followed_by_end_of_text(self, encoder):
        """A document is the bytes of its text and the end, and nothing else."""
        encoded = encoder.encode([Record("ab"), Record("c")])
        assert encoded.ids.tolist() == [*b"ab", 256, *b"c", 256]
        assert encoder.fingerprint() == MemoryTokenizer().fingerprint()


class TestMemoryDocumentEncoder(DocumentEncoderContract):
    examples = tuple(map(Record, ("aB", "Abc", "a b c", "B", "ä")))
    refused = (HALF, Record("abc"))
    is_masked = True

    @pytest.fixture
    def new(self):
        return lambda: MemoryDocumentEncoder(MemoryTokenizer(), untrained=b"abc")

    @pytest.fixture
    def others(self):
        return [
            MemoryDocumentEncoder(MemoryTokenizer(), untrained=b"ab"),
            MemoryDocumentEncoder(BackwardsTokenizer(), untrained=b"abc"),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.document_encoder.memory import MemoryDocumentEncoder\n"
            "from holdfast.adapters.tokenizer.memory import MemoryTokenizer\n"
            "encoder = MemoryDocumentEncoder(MemoryTokenizer(), untrained=b'abc')"
        )

    def test_ids_that_are_not_trained_on_are_masked(self, encoder):
        """The mask is false at exactly the ids that were named, and true at the end of the text."""
        assert encoder.encode([Record("aB")]).loss_mask.tolist() == [False, True, True]


def said(*texts: str) -> Record:
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    messages = tuple(ChatMessage(roles[number % 2], text) for number, text in enumerate(texts))
    return Record(conversation_text(Conversation(messages)))


class TestChatDocumentEncoder(DocumentEncoderContract):
    examples = (said("Hi", "Hello."), said("One?", "1", "Two?", "2"), said("ü", "東京", "last"))
    refused = (said("Hi"), Record("no JSON"), Record('{"text":"a"}'))
    is_masked = True

    @pytest.fixture
    def new(self):
        return lambda: chat_encoder("qwen3")

    @pytest.fixture
    def others(self):
        return [
            chat_encoder("chatml"),
            chat_encoder("qwen3", train_on="last_assistant"),
            chat_encoder("qwen3", keeps_reasoning=False),
        ]

    @pytest.fixture
    def rebuild(self):
        return "from tests.contracts.test_document_encoder import chat_encoder\nencoder = chat_encoder('qwen3')"

    def test_a_template_that_rewrites_history_gives_several_documents(self, encoder):
        """A conversation of two replies is two documents for Qwen3's template, and one for that of ChatML."""
        counts = [each.encode(self.examples).counts.tolist() for each in (encoder, chat_encoder("chatml"))]
        assert counts == [[1, 2, 1], [1, 1, 1]]

    def test_reasoning_is_left_out(self):
        """Without reasoning a reply is encoded as if it had none."""
        plain = said("Hi", "Hello.")
        thought = Record(plain.text.replace('"Hello."', '"<think>why</think>Hello."'))
        encoders = [chat_encoder("qwen3", keeps_reasoning=keeps) for keeps in (False, True)]
        found = [encoder.encode([thought]).ids.tolist() for encoder in encoders]
        assert found[0] == encoders[0].encode([plain]).ids.tolist() != found[1]


def preferred(asked: str, chosen: str, rejected: str) -> Record:
    return Record(preference_text(preference_of({"prompt": asked, "chosen": chosen, "rejected": rejected})))


class TestPreferenceDocumentEncoder(DocumentEncoderContract):
    examples = (preferred("Hi", "Hello.", "What?"), preferred("ü", "東京", "<|im_end|>"), preferred("a", "b c d", "b"))
    refused = (said("Hi", "Hello."), Record("no JSON"), Record('{"chosen":1,"rejected":2}'))
    is_masked = True

    @pytest.fixture
    def new(self):
        return lambda: preference_encoder("qwen3")

    @pytest.fixture
    def others(self):
        return [preference_encoder("chatml"), preference_encoder("qwen3", keeps_reasoning=False)]

    @pytest.fixture
    def rebuild(self):
        return (
            "from tests.contracts.test_document_encoder import preference_encoder\n"
            "encoder = preference_encoder('qwen3')"
        )

    def test_both_replies_follow_the_same_prompt(self, encoder):
        """A pair is prompt, chosen reply, the same prompt and rejected reply; only the replies are trained on."""
        [record] = self.examples[:1]
        encoded = encoder.encode([record])
        second = int(rejected_starts(encoded.loss_mask, encoded.offsets)[0])
        prompts = [
            encoded.ids[part][~encoded.loss_mask[part]].tolist() for part in (slice(second), slice(second, None))
        ]
        assert prompts[0] == prompts[1] != []
        tokenizer = templated("qwen3")
        asked = tokenizer.chat_template.encode([ChatMessage(MessageRole.USER, "Hi")])
        assert prompts[0] == list(asked)
        replies = [
            tokenizer.decode_all(encoded.ids[part][encoded.loss_mask[part]].tolist())
            for part in (slice(second), slice(second, None))
        ]
        assert [reply.partition("<think>")[0] + reply.rpartition("</think>")[2].strip() for reply in replies] == [
            "Hello.<|im_end|>",
            "What?<|im_end|>",
        ]

    def test_replies_that_differ_in_their_reasoning_only_are_refused_without_it(self):
        """Where reasoning is left out, a pair must differ in what is left."""
        thought = preferred("Hi", "<think>a</think>Hello.", "<think>b</think>Hello.")
        preference_encoder("qwen3").encode([thought])
        with pytest.raises(DataError, match="differ in their reasoning only"):
            preference_encoder("qwen3", keeps_reasoning=False).encode([thought])


class TestCompletionDocumentEncoder(DocumentEncoderContract):
    examples = (
        Record(completion_text("a: ", "b")),
        Record(completion_text("", "ü")),
        Record(completion_text("x", " ")),
    )
    refused = (Record(completion_text("a", "")), Record("no JSON"), Record(completion_text("a", "\ud800")))
    is_masked = True

    @pytest.fixture
    def new(self):
        return lambda: CompletionDocumentEncoder(MemoryTokenizer())

    @pytest.fixture
    def others(self):
        return [CompletionDocumentEncoder(BackwardsTokenizer())]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.document_encoder.completion import CompletionDocumentEncoder\n"
            "from holdfast.adapters.tokenizer.memory import MemoryTokenizer\n"
            "encoder = CompletionDocumentEncoder(MemoryTokenizer())"
        )

    def test_the_completion_and_its_end_are_trained_on(self, encoder):
        """The bytes of the prompt are no targets, those of the completion and end-of-text are."""
        encoded = encoder.encode([Record(completion_text("ab", "cd"))])
        assert encoded.ids.tolist() == [*b"abcd", 256]
        assert encoded.loss_mask.tolist() == [False, False, True, True, True]


def chat_encoder(template: str, **options: Any) -> ChatDocumentEncoder:
    """Return an encoder with a stock template; also for another process."""
    tokenizer = templated(template)
    return ChatDocumentEncoder(tokenizer.chat_template, tokenizer, **options)


def preference_encoder(template: str, **options: Any) -> PreferenceDocumentEncoder:
    """Return an encoder of preferences with a stock template; also for another process."""
    tokenizer = templated(template)
    return PreferenceDocumentEncoder(tokenizer.chat_template, tokenizer, **options)
