"""Text from a model: piece by piece, and no longer than the model can see."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.training.generate import IncrementalDecoder, fitted, generate, stream_text
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer

TOKENIZER = MemoryTokenizer()
BYTES = st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode))


@given(BYTES)
def test_pieces_join_to_the_decoded_text_and_cut_no_character(content):
    """Whatever bytes the ids stand for, the pieces join to the text of all, and only complete characters are shown."""
    pieces = IncrementalDecoder(TOKENIZER)
    shown = [pieces.after(token) for token in content]
    assert "\N{REPLACEMENT CHARACTER}" not in [piece[-1:] for piece in shown]
    assert "".join([*shown, pieces.rest()]) == TOKENIZER.decode(list(content))


def test_a_character_is_shown_once_it_is_complete():
    """Of a character of three bytes nothing is shown before its last."""
    pieces = IncrementalDecoder(TOKENIZER)
    assert [pieces.after(token) for token in "a€b".encode()] == ["a", "", "", "€", "b"]


class Narrow:
    """A trainable that sees so many positions."""

    def __init__(self, num_positions):
        self.inner = MemoryOptimizer().prepare(BigramModel(np.zeros((257, 257))))
        self.num_positions = num_positions

    def __getattr__(self, name):
        return getattr(self.inner, name)


@given(st.integers(2, 40), st.integers(1, 60), st.integers(1, 60))
def test_prompt_and_new_tokens_fit_into_the_positions(positions, prompt, wanted):
    """Both together are never more than the positions, the end of the prompt stays, and less is told in a sentence."""
    ids, sampling, note = fitted(Narrow(positions), TOKENIZER, "x" * (prompt - 1) + "y", Sampling(wanted))
    assert len(ids) + sampling.max_new_tokens <= positions or note is None
    assert ids[-1] == ord("y")
    assert sampling.max_new_tokens >= 1
    assert (note is None) == (len(ids) == prompt and sampling.max_new_tokens == wanted)
    if prompt <= positions // 2:
        assert len(ids) == prompt


def test_a_stream_is_the_text_that_generate_returns():
    """What comes piece by piece is the text that is returned at once, with its prompt."""
    trainable = Narrow(20)
    pieces = []
    stream_text(trainable, TOKENIZER, "ab", Sampling(64, seed=3), pieces.append)
    assert "".join(pieces) == generate(trainable, TOKENIZER, "ab", Sampling(64, seed=3))
    assert len(pieces) > 5


@pytest.mark.parametrize(("prompt", "said"), [("a", "19 new tokens at most, not 64"), ("a" * 30, "last 10 of the 30")])
def test_what_is_left_out_is_told(prompt, said):
    """The sentence names the positions and what there is room for."""
    note = fitted(Narrow(20), TOKENIZER, prompt, Sampling(64))[2]
    assert "20 positions" in note
    assert said in note


class Begun(ForwardingTokenizer):
    """Puts the id 1 before a document."""

    @property
    def around(self):
        return (1,), (self.end_of_text,)


@pytest.mark.parametrize("prompt", ["", "ab", "ab" * 30])
def test_a_prompt_begins_as_a_document_does(prompt):
    """The special ids before a document come first, also before an empty prompt and one that is shortened."""
    ids, sampling, _ = fitted(Narrow(20), Begun(TOKENIZER), prompt, Sampling(64))
    assert list(ids) == [1, *prompt.encode()[len(prompt) + 1 - len(ids) :]]
    assert len(ids) + sampling.max_new_tokens == 20
