"""Reports as Markdown."""

from __future__ import annotations

import re

from holdfast.bootstrap.operations.report_facts import report_facts
from holdfast.bootstrap.operations.report_sections import escaped, markdown_report
from holdfast.configs.strict_yaml import write_yaml
from tests.support.written_runs import BEGAN, event, write_lines, write_run

HOSTILE = "<script>alert(1)</script> | a *b* `c` [d](javascript:e) &lt; $x$ \n# f"


def test_no_text_of_a_run_is_markdown_or_html(tmp_path):
    """What a person or a file wrote is shown as it is: no tag, link, table cell or heading comes from it."""
    settings = [f"sample.prompt={write_yaml(HOSTILE)}"]
    run = write_run(tmp_path / "a", events=[event("RolledBack", 1, from_step=3, reason=HOSTILE)], settings=settings)
    text = markdown_report([report_facts(run)])
    shown = "\n".join(line for number, line in enumerate(text.split("```")) if number % 2 == 0)  # without code
    assert "<script>" not in shown
    assert not re.search(r"(?<!\\)\]\(", shown)
    assert shown.count("\n# ") == 0
    assert "\\<script\\>" in shown


def test_a_crash_has_its_step_and_its_checkpoint(tmp_path):
    """The row has what the supervisor recorded of the crash."""
    run = write_run(tmp_path / "a", losses=[3.0])
    crash = {"time": BEGAN, "code": 137, "cause": "killed", "step": 17, "durable_step": 15, "lost_steps": 2}
    write_lines(run / "restarts.jsonl", [crash])
    assert "| killed | 137 | 17 | 15 | 2 |" in markdown_report([report_facts(run)])


def test_escaped_text_is_one_line():
    """A line end would end a row of a table."""
    assert escaped("a\nb\r\n| c") == "a b \\| c"


def test_several_runs_have_a_column_each_and_the_settings_that_differ(tmp_path):
    """Runs of the same name are told apart by their paths, and settings that are equal are not compared."""
    runs = [
        write_run(tmp_path / place / "same", losses=[loss], settings=[f"run.seed={seed}"])
        for place, loss, seed in (("one", 3.0, 1), ("two", 2.0, 2))
    ]
    text = markdown_report([report_facts(run) for run in runs])
    assert f"same ({tmp_path}/one/same)".replace("_", "\\_") in text
    section = text.partition("## Settings that differ")[2].partition("## same")[0]
    assert "| run.seed | 1 | 2 |" in section
    assert section.count("\n| ") == 2  # the header too
