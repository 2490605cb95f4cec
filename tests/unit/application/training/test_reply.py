"""Replies token by token: the same as generate's, ended by a person, the model or the length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.training.generate import (
    ReplyEnd,
    chat_prompt,
    generate,
    plain_prompt,
    sample_text,
    stream_reply,
    whole_reply,
)
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole
from holdfast.domain.training.text_generation import Sampling

TOKENIZER = MemoryTokenizer()
LOGITS = np.random.default_rng(7).normal(size=(257, 257))


class Narrow:
    """A trainable that sees so many positions."""

    def __init__(self, num_positions=None, logits=LOGITS):
        self.inner = MemoryOptimizer().prepare(BigramModel(logits.copy()))
        self.num_positions = num_positions

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Tagged:
    """A chat template whose ids are the bytes of its messages; byte 10 ends a reply."""

    ends = frozenset({256, 10})

    def encode(self, messages):
        return list("".join(f"{message.role[0]}:{message.text}\n" for message in messages).encode())


def talk(*texts):
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    return [ChatMessage(roles[number % 2], text) for number, text in enumerate(texts)]


@given(st.sampled_from([0.0, 0.5, 1.3]), st.integers(0, 99), st.text("ab é", max_size=6), st.integers(1, 80))
def test_a_reply_is_what_generate_returns(temperature, seed, text, most):
    """Token for token and as text, a reply to plain text is the text of ``generate``, for any temperature and seed."""
    trainable, told = Narrow(), []
    sampling = Sampling(most, temperature, seed=seed)
    prompt = plain_prompt(trainable, TOKENIZER, text, sampling)
    stream_reply(trainable, TOKENIZER, prompt, lambda token, piece: told.append((token, piece)))
    ids = [token for token, _ in told if token is not None]
    assert ids == list(trainable.generate(prompt.ids, sampling, end_of_text=256))
    assert text + "".join(piece for _, piece in told) == generate(trainable, TOKENIZER, text, sampling)


def test_a_person_ends_a_reply_at_the_next_token():
    """Once it is stopped, no more tokens are told and none are computed for long."""
    told = []
    prompt = plain_prompt(Narrow(), TOKENIZER, "a", Sampling(50))
    end = stream_reply(Narrow(), TOKENIZER, prompt, lambda *each: told.append(each), is_stopped=lambda: len(told) >= 3)
    assert (end, len([token for token, _ in told if token is not None])) == (ReplyEnd.STOPPED, 3)


def test_the_end_says_why():
    """A reply ends by the model at end-of-text or another id that ends it, and otherwise at the maximum length."""
    chain = np.full((257, 257), -9.0)
    for here, there in ((97, 98), (98, 99), (99, 10), (10, 256)):
        chain[here, there] = 9.0
    told = []
    for most, ends in ((2, {256}), (3, {256}), (9, {256}), (9, {256, 10})):
        trainable, ids = Narrow(logits=chain), []
        prompt = plain_prompt(trainable, TOKENIZER, "a", Sampling(most, 0.0))
        prompt = type(prompt)(prompt.ids, prompt.sampling, ends)
        told.append((stream_reply(trainable, TOKENIZER, prompt, lambda token, _, ids=ids: ids.append(token)), ids))
    assert told == [
        (ReplyEnd.LENGTH, [98, 99]),
        (ReplyEnd.LENGTH, [98, 99, 10]),
        (ReplyEnd.MODEL, [98, 99, 10]),
        (ReplyEnd.MODEL, [98, 99]),
    ]


def test_a_character_that_stays_incomplete_comes_last():
    """The bytes of a character whose end never came are told without an id, as ``generate`` decodes them."""
    chain = np.full((257, 257), -9.0)
    chain[97, 0xE2], chain[0xE2, 0x82] = 9.0, 9.0
    trainable, told = Narrow(logits=chain), []
    prompt = plain_prompt(trainable, TOKENIZER, "a", Sampling(2, 0.0))
    stream_reply(trainable, TOKENIZER, prompt, lambda *each: told.append(each))
    assert told == [(0xE2, ""), (0x82, ""), (None, "\N{REPLACEMENT CHARACTER}")]


def test_the_oldest_exchanges_are_left_out():
    """A conversation beyond the positions loses its oldest exchanges, not its system message, and says so."""
    messages = [ChatMessage(MessageRole.SYSTEM, "S"), *talk("one", "two", "three", "four", "five")]
    prompt = chat_prompt(Narrow(24), Tagged(), messages, Sampling(8))
    assert bytes(prompt.ids) == b"s:S\nu:five\n"
    assert prompt.sampling.max_new_tokens == 8
    assert "24 positions: it does not see the first 4 messages" in prompt.note
    assert prompt.ends == Tagged.ends


@pytest.mark.parametrize("positions", [None, 100])
def test_a_conversation_that_fits_is_whole(positions):
    """With room for everything nothing is left out and nothing is said."""
    prompt = chat_prompt(Narrow(positions), Tagged(), talk("one", "two", "three"), Sampling(8))
    assert bytes(prompt.ids) == b"u:one\na:two\nu:three\n"
    assert prompt.note is None


def test_a_message_that_is_too_long_alone_is_cut():
    """The last message keeps its end, and the sentence names the number of tokens."""
    prompt = chat_prompt(Narrow(16), Tagged(), talk("x" * 40), Sampling(8))
    assert bytes(prompt.ids) == b"x" * 7 + b"\n"
    assert "last 8 of the 43 tokens" in prompt.note


def chain(*pairs):
    """Return the logits of a model that writes one byte after another as in ``pairs``."""
    logits = np.full((257, 257), -9.0)
    for here, there in pairs:
        logits[here, there] = 9.0
    return logits


@pytest.mark.parametrize(("most", "text", "end"), [(9, "bc", ReplyEnd.MODEL), (2, "bc", ReplyEnd.LENGTH)])
def test_a_whole_reply_ends_at_any_id_that_ends_it(most, text, end):
    """The text ends before the id that ends a reply, and a reply that is cut is told from one that ends."""
    trainable = Narrow(logits=chain((10, 98), (98, 99), (99, 10)))
    prompt = chat_prompt(trainable, Tagged(), talk("a"), Sampling(most, 0.0))
    assert whole_reply(trainable, TOKENIZER, prompt) == (text, end)
    also = chat_prompt(Narrow(logits=chain((10, 98), (98, 99), (99, 256))), Tagged(), talk("a"), Sampling(9, 0.0))
    assert whole_reply(Narrow(logits=chain((10, 98), (98, 99), (99, 256))), TOKENIZER, also)[0] == "bc"


def test_a_sample_is_a_reply_only_by_a_template():
    """With a template the sample is the reply to a message, below it, and without one the text goes on."""
    trainable, notes = Narrow(logits=chain((10, 98), (98, 10), (97, 99), (99, 256))), []
    with_template = sample_text(trainable, TOKENIZER, Tagged(), "a", Sampling(9, 0.0), note=notes.append)
    plain = sample_text(trainable, TOKENIZER, None, "a", Sampling(9, 0.0), note=notes.append)
    assert (with_template, plain, notes) == ("a\nb", "ac", [])
