"""The command ``report``: writes what a run did, with its curves, into one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_runs_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Writes one HTML file with curves, data, events, evaluations, checkpoints, settings and environment. It needs no other
file and no network, so it can be mailed. Several runs are compared: side by side, and on the same curves. Reads only,
so it is safe while a run trains. Without --output the HTML file is report.html in the run folder, or in the current
folder for several runs; Markdown and JSON are printed. A run writes report.html itself when it ends (run.report).
The folder of a study of `tune` gets the report on the study, as HTML or JSON.

examples:
  %(prog)s runs/default
  %(prog)s runs/first runs/second --output comparison.html
  %(prog)s runs/default --markdown
  %(prog)s runs/default --json --output report.json
"""


def add_report(commands: Commands) -> None:
    """Add ``report`` to ``commands``."""
    parser = add_command(commands, "report", "write a report on one run or several, as one HTML file", _HELP, report)
    add_runs_of(parser, "a run: its folder, such as runs/default, or its name in runs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="write Markdown, without curves")
    form.add_argument("--json", action="store_true", help="write one JSON object with all figures")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to write, instead of the one named above")


def report(options: argparse.Namespace) -> int:
    """Write or print the report on the runs; return the exit code."""
    import json

    from holdfast.bootstrap.operations.report_facts import report_facts
    from holdfast.bootstrap.operations.report_sections import markdown_report
    from holdfast.bootstrap.operations.study_facts import is_study
    from holdfast.bootstrap.process.printing import fitting, short, visible
    from holdfast.bootstrap.web.html_page import write_text
    from holdfast.bootstrap.web.report_html import default_output, html_report

    if len(options.runs) == 1 and is_study(options.runs[0]):
        return _report_study(options)
    is_html = not options.markdown and not options.json
    output = default_output(options.runs) if options.output is None and is_html else options.output
    runs = [report_facts(run) for run in options.runs]
    if options.json:
        text = json.dumps({"runs": runs}, indent=1, allow_nan=False) + "\n"
    else:
        text = markdown_report(runs) if options.markdown else html_report(runs)
    if output is None:
        print(visible(text), end="")
    else:
        write_text(output, text)
        print(fitting(f"report: {short(str(output))}"))
    return ExitCode.FINISHED


def _report_study(options: argparse.Namespace) -> int:
    """Write or print the report on a study; return the exit code."""
    import json

    from holdfast.bootstrap.operations.study_facts import study_facts
    from holdfast.bootstrap.process.printing import fitting, short
    from holdfast.bootstrap.web.html_page import write_text
    from holdfast.bootstrap.web.report_html import default_output
    from holdfast.bootstrap.web.study_html import study_html
    from holdfast.domain.errors import ConfigurationError

    if options.markdown:
        msg = f"{options.runs[0]} is the folder of a study, whose report has no Markdown: leave --markdown out"
        raise ConfigurationError(msg)
    facts = study_facts(options.runs[0])
    output = default_output(options.runs) if options.output is None and not options.json else options.output
    text = json.dumps(facts.to_json(), indent=1) + "\n" if options.json else study_html(facts)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(fitting(f"report: {short(str(output))}"))
    return ExitCode.FINISHED
