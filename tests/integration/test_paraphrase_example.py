"""The example with a model-based transform paraphrases, and keeps the port's promises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.paraphrase_transform import ParaphraseTransform, write_tiny_model

pytestmark = pytest.mark.slow  # a model is trained

TEXT = "the cat sees a house. my friend likes the sea!\n\nA stranger said nothing."
PARAPHRASED = "the kitten notices one home. my companion enjoys the ocean!\n\nA stranger said nothing."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of the example's tiny model."""
    folder = tmp_path_factory.mktemp("paraphrase") / "model"
    write_tiny_model(folder)
    return str(folder)


def test_sentences_are_rewritten_by_the_model(model):
    """Known sentences become their paraphrases, others stay, and so do the signs and lines between them."""
    assert ParaphraseTransform(model=model)(TEXT) == PARAPHRASED


def test_the_result_depends_on_the_text_alone(model):
    """Earlier calls, other threads and another object make no difference."""
    transform = ParaphraseTransform(model=model)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(transform, [TEXT, "", TEXT, "a dog wants some food."] * 3))[::2] == [PARAPHRASED] * 6
    again = ParaphraseTransform(model=model)
    assert again(TEXT) == PARAPHRASED
    assert again.fingerprint() == transform.fingerprint()


def test_options_choose_the_sentences(model):
    """With probability 0 nothing changes, and what the model cannot end in max_tokens stays; both are options."""
    unchanged = [ParaphraseTransform(model=model, **each) for each in ({"probability": 0}, {"max_tokens": 2})]
    assert [transform(TEXT) for transform in unchanged] == [TEXT, TEXT]
    assert len({transform.fingerprint() for transform in [*unchanged, ParaphraseTransform(model=model)]}) == 3
