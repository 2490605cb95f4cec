"""Reports as one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from holdfast.bootstrap.operations.report_facts import report_facts
from holdfast.bootstrap.web.report_html import default_output, html_report, write_at_end
from holdfast.configs.strict_yaml import write_yaml
from holdfast.domain.errors import ConfigurationError
from tests.support.written_runs import event, write_run

HOSTILE = "</script><script>window.hacked=1</script><img src=//evil.example/x onerror=alert(1)> ]]> <!-- \u2028 \"'"


class Reader(HTMLParser):
    """Collects the tags, their attributes, and the texts of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts = [], []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside in ("script", "style"):
            self.texts.append((self._inside, self.tags[-1][1].get("type"), data))


def hostile_run(folder):
    events = [event("RunStarted", 1), event("RolledBack", 1, from_step=3, reason=HOSTILE), event("RunFinished", 3)]
    run = write_run(folder, losses=[3.0, "NaN", 2.0], events=events, settings=[f"sample.prompt={write_yaml(HOSTILE)}"])
    (run / "samples.jsonl").write_text(json.dumps({"step": 3, "prompt": HOSTILE, "text": HOSTILE}) + "\n")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "eval_loss": 2.0, f"eval_{HOSTILE}": 1.0}) + "\n")
    return run


def test_texts_of_a_run_are_no_markup(tmp_path):
    """Hostile prompts, samples, reasons and names of metrics make no tag, attribute or script of the page."""
    usual = Reader(html_report([report_facts(write_run(tmp_path / "a", losses=[3.0, 2.0]))]))
    found = Reader(html_report([report_facts(hostile_run(tmp_path / "b"))]))
    assert {tag for tag, _ in found.tags} <= {tag for tag, _ in usual.tags} | {"pre", "tr", "td", "section", "h2", "p"}
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert [text for text in found.texts if text[1] is None] == [text for text in usual.texts if text[1] is None]
    [data] = [text for kind, form, text in found.texts if form == "application/json"]
    assert HOSTILE in json.dumps(json.loads(data), ensure_ascii=False).replace('\\"', '"')


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(tmp_path):
    """The hashes are those of the scripts and styles, and no address is allowed."""
    page = Reader(html_report([report_facts(write_run(tmp_path / "a", losses=[3.0]))]))
    [policy] = [each["content"] for tag, each in page.tags if each.get("http-equiv") == "Content-Security-Policy"]
    for kind, form, text in page.texts:
        if form is None:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert re.search(rf"{kind}-src [^;]*'sha256-{re.escape(digest)}'", policy)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "http" not in policy
    addresses = [each[name] for _, each in page.tags for name in ("src", "href") if name in each]
    assert addresses == ["data:,"]


def test_a_report_has_the_license_of_the_code_in_it(tmp_path):
    """The code of uPlot may be passed on with its copyright notice only."""
    page = html_report([report_facts(write_run(tmp_path / "a", losses=[3.0]))])
    assert page.index("Copyright (c) 2022 Leon Sorokin") < page.index("var uPlot=")


def test_the_report_is_the_same_from_a_copy(tmp_path):
    """No text depends on the folder except the path itself, so that a report of a moved run is complete."""
    run = hostile_run(tmp_path / "a")
    page = html_report([report_facts(run)])
    moved = run.rename(tmp_path / "a2").rename(tmp_path / "b")
    assert html_report([report_facts(moved)]).count("<tr>") == page.count("<tr>")


def test_runs_are_drawn_on_the_same_curves(tmp_path):
    """Each chart of a comparison has a series for each run, named after it, and all have the same domain."""
    runs = [write_run(tmp_path / name, losses=losses) for name, losses in (("a", [3.0, 2.0]), ("b", [2.5] * 5))]
    page = Reader(html_report([report_facts(run) for run in runs]))
    [data] = [json.loads(text) for _, form, text in page.texts if form == "application/json"]
    chart = data["charts"][0]
    assert [(each["name"], each["y"]) for each in chart["series"]] == [
        ("a, training", [3.0, 2.0]),
        ("b, training", [2.5] * 5),
    ]
    assert data["domain"] == [1, 5]


def test_marks_of_a_comparison_belong_to_their_run(tmp_path):
    """A mark has the name and the colour of its run if there are several, and those of its level alone otherwise."""
    gone = [event("RunStarted", 1), event("RolledBack", 1, from_step=3, reason="spike")]
    runs = [write_run(tmp_path / name, losses=[3.0, 2.0, 2.5], events=gone) for name in ("a", "b")]
    for shown, owners in ((runs, [("a: ", 0), ("b: ", 1)]), (runs[1:], [("", None)])):
        page = Reader(html_report([report_facts(run) for run in shown]))
        [data] = [json.loads(text) for _, form, text in page.texts if form == "application/json"]
        marks = [each for each in data["events"] if "ROLLED BACK" in each["text"]]
        assert len(marks) == len(owners)
        for mark, (name, color) in zip(marks, owners, strict=True):
            assert mark.get("color") == color
            assert mark["text"].startswith(f"{name}step 3")


def test_the_lines_of_a_chart_that_compares_runs_have_colours_of_their_own(tmp_path):
    """Each source of each run has another colour, as nothing else tells them apart."""
    runs = [write_run(tmp_path / name, losses=[3.0]) for name in ("a", "b")]
    for run in runs:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 1, "eval_loss/web": 1.0, "eval_loss/code": 2.0}) + "\n")
    page = Reader(html_report([report_facts(run) for run in runs]))
    [data] = [json.loads(text) for _, form, text in page.texts if form == "application/json"]
    [chart] = [chart for chart in data["charts"] if chart["title"] == "eval loss"]
    assert len({each["color"] for each in chart["series"]}) == 4


def test_evaluations_by_source_share_a_chart(tmp_path):
    """The losses of the sources of a mixture are compared on one chart, and so are the metrics of a task."""
    run = write_run(tmp_path / "a", losses=[3.0])
    names = ("eval_loss/web", "eval_loss/code", "suite/arc/acc", "suite/arc/acc_norm")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, **dict.fromkeys(names, 1.0)}) + "\n")
    page = Reader(html_report([report_facts(run)]))
    [data] = [json.loads(text) for _, form, text in page.texts if form == "application/json"]
    found = {chart["title"]: [each["name"] for each in chart["series"]] for chart in data["charts"]}
    assert found["eval loss"] == ["eval_loss/code", "eval_loss/web"]
    assert found["suite/arc"] == ["suite/arc/acc", "suite/arc/acc_norm"]


def test_the_chart_of_a_single_set_names_the_set(tmp_path):
    """A chart with one line has no legend, so its title is the name of the metric with that of the set."""
    run = write_run(tmp_path / "a", losses=[3.0])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 1, "eval_loss/news": 1.0}) + "\n")
    page = Reader(html_report([report_facts(run)]))
    [data] = [json.loads(text) for _, form, text in page.texts if form == "application/json"]
    assert "eval loss/news" in [chart["title"] for chart in data["charts"]]


def test_the_end_of_a_run_replaces_an_earlier_report(tmp_path):
    """The report of the last start stays, and no draft is left beside it."""
    run, said = write_run(tmp_path / "a", losses=[3.0]), []
    assert write_at_end(run, said.append, 60.0) == run / "report.html"
    first = (run / "report.html").read_text()
    write_run(tmp_path / "b", losses=[3.0, 2.0])
    (tmp_path / "b" / "metrics.jsonl").rename(run / "metrics.jsonl")
    write_at_end(run, said.append, 60.0)
    assert (run / "report.html").read_text() != first
    assert said == []
    assert not [path for path in run.iterdir() if path.name.endswith(".new")]


@pytest.mark.parametrize("problem", ["damaged", "foreign", "slow"])
def test_a_report_that_cannot_be_written_is_one_line(tmp_path, problem):
    """Whatever hinders the report, the run ends as it would without one."""
    run, said = write_run(tmp_path / "a", losses=[3.0]), []
    if problem == "damaged":
        (run / "run.json").write_text("{")
    if problem == "foreign":
        (run / "report.html").write_text("<p>mine</p>")
    assert write_at_end(run, said.append, 0.0 if problem == "slow" else 60.0) is None
    [line] = said
    assert line.startswith("no report was written")
    assert "\n" not in line
    if problem == "foreign":
        assert (run / "report.html").read_text() == "<p>mine</p>"


def test_a_folder_without_a_run_gets_no_report(tmp_path):
    """A start that was refused before it wrote anything leaves a folder as it was."""
    assert write_at_end(tmp_path, pytest.fail, 60.0) is None
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_no_report_is_not_replaced(tmp_path):
    """Without --output nothing of the user's is lost."""
    (tmp_path / "report.html").write_text("<p>mine</p>")
    with pytest.raises(ConfigurationError, match="is no report: name another file with --output"):
        default_output([tmp_path])
