"""The command ``data validate`` checks data without tokenizing them."""

from __future__ import annotations

import json

from tests.support.command_line import run_here

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
