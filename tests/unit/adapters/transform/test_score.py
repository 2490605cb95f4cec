"""The transform ``score`` stores what a function of another package says, and how the function is loaded."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from math import inf, nan

import pytest

from holdfast.adapters.transform.score import ScoreTransform
from holdfast.bootstrap.adapter_choice import plugins
from holdfast.bootstrap.stages.identify import record_pipeline as score_functions
from holdfast.bootstrap.stages.identify.record_pipeline import with_score_function
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Record
from tests.support.record_transforms import judged


def scored(function=len, **options):
    return ScoreTransform(**{"name": "length", "function": function, "function_fingerprint": "len 1"} | options)


def lengths(texts):
    return [len(text) for text in texts]


@pytest.mark.parametrize("options", [{}, {"function": lengths, "takes_many": True}])
def test_the_score_stands_beside_the_text(options):
    """A record keeps its text, fields and other scores, whether the function takes one text or many."""
    records = [Record("abc", {"id": 1}, {"other": 2.0}, ("odd",)), Record("")]
    assert list(scored(**options).apply(records)) == [
        Record("abc", {"id": 1}, {"other": 2.0, "length": 3.0}, ("odd",)),
        Record("", {}, {"length": 0.0}),
    ]


def test_scores_outside_the_bounds_are_dropped():
    """The bounds themselves are kept, and the reason names the score and the side."""
    transform = scored(min=2, max=3)
    found = [judged(transform, "x" * number) for number in range(1, 5)]
    assert found == ["score.length_too_low", "xx", "xxx", "score.length_too_high"]


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_score_that_is_no_number_is_an_error(value):
    """The document is one that cannot be used: no bound could judge it."""
    with pytest.raises(ValueError, match="no finite number"):
        scored(lambda _: value).apply([Record("a")])


def test_a_function_of_many_texts_gives_as_many_numbers():
    """Scores are never given to another document."""
    with pytest.raises(ValueError, match="gave 1 numbers for 2 texts"):
        scored(lambda _: [1.0], takes_many=True).apply([Record("a"), Record("b")])


def test_options_that_matter_are_in_the_fingerprint():
    """Another function, name or bound is another transform."""
    others = [{}, {"min": 1}, {"max": 1}, {"name": "size"}, {"function_fingerprint": "len 2"}]
    assert len({scored(**each).fingerprint() for each in others}) == len(others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "name of .* must not be empty"),
        ({"min": "1"}, "min of .* must be a number, not '1'"),
        ({"min": 2, "max": 1}, "drops everything: min, now 2, must be at most max, now 1"),
        ({"takes_many": "yes"}, "takes_many of .* must be true or false, not 'yes'"),
    ],
)
def test_wrong_options_are_told(options, message):
    """A wrong option is an error in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        scored(**options)


@pytest.fixture
def installed(monkeypatch):
    """Install an entry point ``length`` that names a function, and ``pi``, which names a number."""
    points = {
        "length": EntryPoint("length", "builtins:len", "holdfast.score"),
        "pi": EntryPoint("pi", "math:pi", "holdfast.score"),
    }

    def found(*, group, name=None):
        return [point for point in points.values() if point.group == group and name in {None, point.name}]

    monkeypatch.setattr(plugins, "entry_points", found)
    monkeypatch.setattr(score_functions, "entry_points", found)


@pytest.mark.usefixtures("installed")
def test_the_function_is_that_of_the_entry_point():
    """The settings name an entry point, and the fingerprint tells where the function came from."""
    options = with_score_function({"name": "length", "function": "length", "max": 3})
    assert judged(ScoreTransform(**options), "abcd") == "score.length_too_high"
    assert options["function_fingerprint"] == "builtins:len of no package"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs function, the name of an entry point"),
        ({"function": 3}, "needs function, .* not 3"),
        ({"function": "lenght"}, "did you mean length"),
        ({"function": "pi"}, "'pi' of holdfast.score gives a float, which is no function"),
        ({"function": "length", "function_fingerprint": "mine"}, "has no option function_fingerprint"),
    ],
)
def test_a_function_that_cannot_be_used_is_told(options, message):
    """A missing or wrong entry point is an error in one sentence."""
    with pytest.raises(ConfigurationError, match=message):
        with_score_function(options)
