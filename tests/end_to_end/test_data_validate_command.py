"""The command ``data validate`` checks data without tokenizing them."""

from __future__ import annotations

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.domain.data.data_files import LATEST_RULES
from holdfast.domain.data.holdout import Holdout
from tests.support.command_line import corpus, run_here, tiny
from tests.support.written_runs import write_run

GOOD = {"url": "https://example.org", "text": "a text that is long enough"}


def write(folder, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / "raw.jsonl").write_text("".join(f"{line}\n" for line in lines))


def validate(folder, *more):
    rules = "data.validation.fields={url: {required: true, pattern: '^https:'}, text: {min_length: 10}}"
    return run_here("data", "validate", "data.path=raw.jsonl", rules, *more, cwd=folder)


def test_records_are_counted_by_reason_with_examples(tmp_path):
    """Each record that a run would leave out is counted, with its place, and nothing is written."""
    write(tmp_path, *[GOOD] * 60, GOOD | {"url": "ftp:"}, {"text": "a text without an address"}, "{broken")
    found = validate(tmp_path, "--json", "data.on_error=skip")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert (result["records"], result["kept"], result["problem"]) == (63, 60, None)
    assert result["drops"] == {"unusable": 1, "validation.url.missing": 1, "validation.url.pattern": 1}
    [example] = result["examples"]["validation.url.pattern"]
    assert example["position"] == 60 * len(json.dumps(GOOD) + "\n")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.jsonl"]
    shown = validate(tmp_path, "data.on_error=skip").stdout
    assert "63 records read, 60 kept" in shown
    assert "the line is not JSON" in shown
    assert shown.endswith("the data pass: no rule ends a run\n")
    stopped = validate(tmp_path)
    assert stopped.returncode == 3
    assert "the line is not JSON" in stopped.stdout.splitlines()[-1]


def test_data_that_would_end_a_run_have_exit_code_3(tmp_path):
    """Too many rejected records, and a rule that says stop, end the command as they end a run."""
    write(tmp_path, *[GOOD] * 5, *[GOOD | {"url": "ftp:"}] * 5)
    found = validate(tmp_path)
    assert found.returncode == 3
    assert "more than data.validation.max_rejected=0.05 allows" in found.stdout
    found = validate(tmp_path, "data.validation.on_violation=stop")
    assert found.returncode == 3
    assert "ftp:" in found.stdout.splitlines()[-1]


BLANK = ["", "  ", "\n\t"]
NO_LIMIT = "data.validation.max_rejected=null"


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize(
    ("rules", "reason"), [("min_length: 1", "min_length"), ("required: true, min_length: 1", "missing")]
)
def test_blank_texts_are_seen_by_the_rules_for_the_text(kind, rules, reason, tmp_path):
    """A record whose text is empty or white space alone violates what an empty text violates, in each format."""
    records = [{"url": "u", "body": text} for text in [*BLANK, *["a text"] * 60]]
    path = tmp_path / f"raw.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif kind == "csv":
        path.write_text("url,body\n" + "".join(f'u,"{each["body"]}"\n' for each in records))
    else:
        path.write_text(json.dumps(records) if kind == "json" else "\n".join(map(json.dumps, records)))
    shared = ("data", "validate", f"data.path={path}", "data.text_field=body", NO_LIMIT, "--json")
    found = run_here(*shared, f"data.validation.fields={{text: {{{rules}}}}}", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert (result["records"], result["kept"], result["drops"]) == (63, 60, {f"validation.text.{reason}": 3})


def test_blank_texts_that_no_rule_refuses_are_no_documents(tmp_path):
    """They are neither counted nor outliers nor trained on, as without a rule for the text."""
    write(tmp_path, *[{"text": text} for text in BLANK], *[GOOD] * 60)
    rules = ("data.validation.fields={text: {max_length: 99}}", "data.validation.outliers.length.min=5")
    found = run_here("data", "validate", "data.path=raw.jsonl", *rules, "--json", cwd=tmp_path)
    result = json.loads(found.stdout)
    assert (result["records"], result["kept"], result["drops"]) == (60, 60, {})


@pytest.mark.parametrize("command", ["validate", "prepare", "train"])
def test_a_rule_for_a_field_that_no_record_has_is_reported(command, tmp_path):
    """A misspelt name, and a path to nothing, check nothing, which each command says."""
    path = corpus(tmp_path)
    rules = "data.validation.fields={idd: {type: number}, meta.src: {type: text}, id: {type: number}}"
    words = ("data", "validate") if command == "validate" else (command,)
    found = run_here(*words, *tiny(path, rules, "data.mode=cache", "run.budget.steps=1"), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    said = " ".join((found.stdout + found.stderr).split())
    assert "has rules for 'idd', 'meta.src', which no record of the 120 read so far has" in said


def test_a_begun_run_is_validated_and_shown_by_its_own_rules(tmp_path):
    """A text file of a folder was several documents when the first runs began, and is one for newer runs."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a line of text\n" * 9000)
    settings = tiny(tmp_path / "texts", f"run.dir={tmp_path / 'run'}")
    counts, shown = [], []
    for rules in ({}, {"files": LATEST_RULES}):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        write_run(tmp_path / "run", settings=settings, facts={"tokenizer": "known"}, rules=rules)
        found = run_here("data", "validate", *settings, "--json", cwd=tmp_path)
        counts.append(json.loads(found.stdout)["records"])
        found = run_here("data", "show", "--rows", "1", *settings, "--json", cwd=tmp_path)
        shown.append(found.stderr)
    assert counts == [3, 1]
    assert shown[0] != shown[1]


def test_rows_that_are_shown_are_trained_on(tmp_path):
    """``data show`` leaves out the documents that the run holds out, and shows all others."""
    texts = [f"document {number} says " + " ".join(f"word{number}" for _ in range(20)) for number in range(12)]
    write(tmp_path, *({"text": text} for text in texts))
    settings = tiny(tmp_path / "raw.jsonl", "data.holdout=0.5")
    found = run_here("data", "show", "--rows", "100", "--json", *settings, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    shown = "".join(part["text"] for row in json.loads(found.stdout)["rows"] for piece in row for part in piece)
    held = [Holdout(0.5, 1234).holds_text(text) for text in texts]
    assert 0 < sum(held) < 12
    assert [text not in shown for text in texts] == held
