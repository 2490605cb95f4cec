"""The ids at which a model stops: end-of-text and those of the chat template."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.training.generate import (
    ReplyEnd,
    end_ids,
    end_of_turn,
    generate,
    new_ids,
    plain_prompt,
    stream_reply,
    whole_reply,
)
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.forwarding.optimizer import ForwardingTrainable
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from holdfast.ports.tokenizer import HasChatTemplate

GREEDY = Sampling(6, 0.0)


class Template:
    """A chat template of which only the ends are asked."""

    ends = frozenset({256, 99, 10})


class Chatty(ForwardingTokenizer, HasChatTemplate):
    """A tokenizer with such a template, or with none."""

    def __init__(self, chat_template):
        super().__init__(MemoryTokenizer())
        self._template = chat_template

    @property
    def chat_template(self):
        return self._template

    def with_template(self, choice):
        raise NotImplementedError


def writes(*ids):
    """Return a model that writes one of ``ids`` after the other."""
    logits = np.full((257, 257), -9.0)
    for here, there in pairwise(ids):
        logits[here, there] = 9.0
    return MemoryOptimizer().prepare(BigramModel(logits))


def test_end_of_text_comes_first():
    """Without a template it is the only end; the ends of a template follow it, each once."""
    assert end_ids(MemoryTokenizer()) == end_ids(Chatty(None)) == [256]
    assert end_ids(Chatty(Template())) == [256, 10, 99]
    assert end_ids(Chatty(Template()), Stopping(writes(1))) == [256, 10, 99]
    assert end_of_turn(end_ids(Chatty(Template())), 256) == 10
    assert end_of_turn([256], 256) == 256


def test_a_text_ends_at_each_of_them():
    """Whichever end a model writes, neither it nor what would follow is part of the text."""
    for end in (10, 99, 256):
        model = writes(97, 98, end, 100, 101)
        assert list(new_ids(model, [97], GREEDY, [256, 10, 99], 256)) == [98]
        assert generate(model, Chatty(Template()), "a", GREEDY) == "ab"


class Stopping(ForwardingTrainable):
    """A model that stops at ``c`` by its own settings."""

    @property
    def own_ends(self):
        return [ord("c"), 256]


@pytest.mark.parametrize("template", [None, Template()])
def test_a_model_stops_at_its_own_ends(template):
    """Texts, replies and replies token by token end at the ids that the model's settings name."""
    model, tokenizer = Stopping(writes(97, 98, 99, 100)), Chatty(template)
    assert generate(model, tokenizer, "a", GREEDY) == "ab"
    prompt, told = plain_prompt(model, tokenizer, "a", GREEDY), []
    assert whole_reply(model, tokenizer, prompt) == ("b", ReplyEnd.MODEL)
    assert stream_reply(model, tokenizer, prompt, lambda token, _: told.append(token)) is ReplyEnd.MODEL
    assert told == [98]
