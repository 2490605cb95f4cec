"""Sources with the same data and other ranges of a score are buckets with weights of their own."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from holdfast.bootstrap.adapter_choice import plugins
from holdfast.bootstrap.stages.identify import record_pipeline as score_functions
from tests.support.command_line import WORDS, run_here, tiny

SCORED = "data.transforms=[{kind: score, options: {name: quality, function: digits}}]"


def digits(text):
    """Return the share of digits."""
    return sum(map(str.isdigit, text)) / len(text)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Write documents of words, and as many with a third of digits; return the ids of the latter."""
    point = EntryPoint("digits", f"{__name__}:digits", "holdfast.score")
    found = lambda group, **_: [point] if group == "holdfast.score" else []  # noqa: E731
    monkeypatch.setattr(plugins, "entry_points", found)
    monkeypatch.setattr(score_functions, "entry_points", found)
    plain = [f"{number} {WORDS} " * 2 for number in range(60)]
    counted = [" ".join(f"{word} 12345" for word in f"{number} {WORDS}".split()) for number in range(60)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*plain, *counted]))
    return tmp_path


def settings(*more):
    chosen = [each for each in tiny(Path("raw.jsonl")) if not each.startswith(("data.kind", "data.path"))]
    sources = {
        "low": {"path": "raw.jsonl", "weight": 3, "score": {"name": "quality", "max": 0.2}},
        "high": {"path": "raw.jsonl", "weight": 1, "score": {"name": "quality", "min": 0.2}},
    }
    return [*chosen, f"data.sources={json.dumps(sources)}", "run.budget.steps=8", *more]


def sources_of(folder, step):
    result = run_here("samples", "runs/default", "--step", str(step), "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["steps"][0]["documents"]


def test_each_bucket_gives_its_documents_by_its_weight(corpus):
    """The texts are tokenized once, each bucket has the documents in its range, and the weights hold."""
    trained = run_here("train", *settings(SCORED, "data.mode=cache", "data.dedup=exact"), cwd=corpus)
    assert trained.returncode == 0, trained.stderr
    found = [each for step in range(1, 9) for each in sources_of(corpus, step)]
    half = (corpus / "raw.jsonl").read_bytes().index(b"12345")
    assert {(each["source"], each["position"] > half - 200) for each in found} == {("low", False), ("high", True)}
    samples = {name: len({each["sample"] for each in found if each["source"] == name}) for name in ("low", "high")}
    assert samples["low"] > 2 * samples["high"] > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["data.mode=cache"], "no document has this score"),
        ([SCORED, "data.mode=stream"], "set data.mode=cache"),
    ],
)
def test_scores_that_cannot_be_used_are_refused(corpus, more, message):
    """A score that no transform gives, and a stream, end the run in one sentence."""
    trained = run_here("train", *settings(*more), cwd=corpus)
    assert trained.returncode == 2
    assert message in trained.stderr.splitlines()[-1]
