from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from holdfast.bootstrap.operations.study_facts import StudyFacts
from holdfast.bootstrap.web.study_html import history_chart, learning_chart, parallel_chart, study_html
from holdfast.configs.sections.tune import TuneSettings
from holdfast.domain.tuning.search_space import Choices, FloatRange, IntRange, SearchSpace
from holdfast.domain.tuning.trial import Trial, TrialState, best_of_trials

SPACE = SearchSpace(
    {"rate": FloatRange(1e-4, 1e-1, is_log=True), "layers": IntRange(2, 6), "kind": Choices(("<b>", "wsd"))}
)


def trial(number, state=TrialState.COMPLETE, value=None, **parameters):
    chosen = {"kind": "wsd", "layers": 2 + number % 4, "rate": 10.0 ** -(1 + number % 3), **parameters}
    measured = {} if value is None else {10: value + 1, 20: value}
    return Trial(number, state, dict(sorted(chosen.items())), measured, value, 100, "it <failed>")


TRIALS = [
    trial(0, value=3.0),
    trial(1, value=2.0, kind="<b>"),
    trial(2, TrialState.PRUNED, 5.0),
    trial(3, TrialState.FAILED),
    trial(4, value=2.5),
    Trial(5),
]


def nodes(chart, kind, css):
    return [node for node in ET.fromstring(chart).iter(kind) if css in node.get("class", "").split()]


def test_the_history_has_a_point_for_each_value():
    """Each trial with a value is a point at its place, and the line falls with each better complete trial."""
    chart = history_chart(TRIALS, "eval_loss")
    points = nodes(chart, "circle", "point")
    assert len(points) == 4
    heights = [float(point.get("cy")) for point in points]
    assert heights[1] > heights[3] > heights[0] > heights[2]
    (line,) = nodes(chart, "path", "best-line")
    assert line.get("d").count("V") == 1
    assert len(nodes(chart, "circle", "pruned")) == 1


def test_of_a_metric_that_is_to_rise_the_highest_value_is_the_best():
    """The line rises to the best value so far, and the shades begin with the highest value."""
    low, high = Trial(0, TrialState.COMPLETE, value=0.4), Trial(1, TrialState.COMPLETE, value=0.8)
    (rising,) = nodes(history_chart([low, high], "eval_reward_accuracy"), "path", "best-line")
    (falling,) = nodes(history_chart([low, high], "eval_loss"), "path", "best-line")
    assert ("V" in rising.get("d"), "V" in falling.get("d")) == (True, False)
    for metric, best in (("eval_loss", "trial 1:"), ("eval_reward_accuracy", "trial 2:")):
        chart = parallel_chart(SPACE, TRIALS, metric, None)
        first = next(line for line in nodes(chart, "path", "coordinate") if "group-0" in line.get("class"))
        assert best in first[0].text


def test_the_coordinates_have_an_axis_for_each_setting():
    """Each setting and the value have an axis, each trial with a value a line, and the best one is drawn last."""
    best = best_of_trials(TRIALS)
    chart = parallel_chart(SPACE, TRIALS, "eval_loss", best)
    assert len(nodes(chart, "line", "axis")) == 4
    lines = nodes(chart, "path", "coordinate")
    assert len(lines) == 4
    assert "best" in lines[-1].get("class")
    assert "trial 1:" in lines[-1][0].text
    begins = {line[0].text.split(":")[0]: float(line.get("d")[1:].split("L")[0].split()[1]) for line in lines}
    assert begins["trial 1"] > begins["trial 0"], "the first choice is at the bottom"


def test_the_curves_have_a_line_for_each_trial():
    """Each trial with an evaluation has a curve, and values that are no numbers are left out."""
    strange = Trial(6, measurements={10: math.nan, 20: 1.0, 30: math.inf})
    chart = learning_chart([*TRIALS, strange], "eval_loss", TRIALS[1])
    assert len(nodes(chart, "path", "curve")) == 5


@pytest.mark.parametrize("trials", [[], [Trial(0)], [trial(0, TrialState.FAILED)]])
def test_without_values_there_is_no_chart(trials):
    """A study without a value has no charts, and one value alone has them."""
    charts = [
        history_chart(trials, "eval_loss"),
        parallel_chart(SPACE, trials, "eval_loss", None),
        learning_chart(trials, "eval_loss", None),
    ]
    assert charts == ["", "", ""]
    assert all(
        [
            history_chart(TRIALS[:1], "m"),
            parallel_chart(SPACE, TRIALS[:1], "m", None),
            learning_chart(TRIALS[:1], "m", None),
        ]
    )


def test_the_report_needs_nothing_from_elsewhere():
    """The page has all charts and trials, escapes every text, and loads nothing."""
    facts = StudyFacts(Path("runs/a<b"), TuneSettings(), 1, 1, SPACE, TRIALS, "2026-11-25T10:00:00+00:00")
    page = study_html(facts)
    assert page.count("<svg") == 3
    assert 'href="trial-0003/report.html"' in page
    assert "it &lt;failed&gt;" in page
    assert "it <failed>" not in page
    assert "a&lt;b" in page
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
