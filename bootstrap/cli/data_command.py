"""The command ``data``: shows and compares the profiles of prepared datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.cli.data_rejects_command import DATASET, add_dataset, add_rejects
from holdfast.bootstrap.cli.data_show_command import add_show
from holdfast.bootstrap.cli.data_validate_command import add_validate
from holdfast.bootstrap.cli.data_versions_command import add_versions
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
A dataset is a folder in a token cache, which `prepare` fills and names, or the cache if it holds one dataset. It may
also be named by a run folder, and by a version: the folder of the cache, then the id or the name of the version.

examples:
  python -m application data profile ~/.cache/holdfast/tokens/ID
  python -m application data compare tokens/march tokens/april
  python -m application data compare ~/.cache/holdfast/tokens/LAST_MONTH ~/.cache/holdfast/tokens/ID

`data COMMAND --help` explains each command.
"""

_PROFILE_HELP = """\
Shows the number of documents, tokens and bytes, quantiles of the lengths of documents, of bytes a token and of the
shares of letters, digits and symbols, the most frequent tokens, and the number of rejected records by reason. All
figures come from the profile that `prepare` stores with each shard, so the tokens are not read again.

examples:
  %(prog)s ~/.cache/holdfast/tokens                       # the cache holds one dataset
  %(prog)s ~/.cache/holdfast/tokens/ID --tokenizer runs/default/tokenizer
  %(prog)s ~/.cache/holdfast/tokens/ID --html profile.html
  %(prog)s ~/.cache/holdfast/tokens/ID --json > profile.json
"""

_COMPARE_HELP = """\
Compares each figure of OTHER with that of REFERENCE. Lengths and shares are compared by the population stability index
(PSI: minor drift from 0.1, major from 0.25), tokens and languages by the Jensen-Shannon divergence (JS: minor from
0.005 bit, major from 0.025). A figure counts as drifted only if two random samples of the same documents would hardly
ever differ as much. With --fail-on drift the exit code is 3 if any drift is major, so that a pipeline can stop.

examples:
  %(prog)s ~/.cache/holdfast/tokens/LAST_MONTH ~/.cache/holdfast/tokens/ID
  %(prog)s runs/march runs/april --html drift.html        # the datasets of two runs
  %(prog)s LAST_MONTH ID --html drift.html                # in the folder of the cache
  %(prog)s LAST_MONTH ID --fail-on drift && echo unchanged
"""


def add_data(commands: Commands) -> None:
    """Add ``data`` and its commands to ``commands``."""
    parser = add_command(commands, "data", "check data, and show and compare prepared datasets", _HELP, profile)
    nested = parser.add_subparsers(required=True, metavar="COMMAND")
    command = add_command(nested, "profile", "show the figures of a dataset", _PROFILE_HELP, profile)
    add_dataset(command, "dataset", DATASET)
    _add_output(command)
    command = add_command(nested, "compare", "compare two datasets figure by figure", _COMPARE_HELP, compare)
    add_dataset(command, "reference", f"the dataset to compare with: {DATASET}")
    add_dataset(command, "other", "the other dataset, or a run that has read it")
    _add_output(command)
    command.add_argument("--fail-on", choices=["drift"], help="end with exit code 3 if a figure shows major drift")
    add_versions(nested)
    add_rejects(nested)
    add_validate(nested)
    add_show(nested)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write FILE, one HTML file with plots")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "the tokenizer.json, or its folder, that gives the text of the tokens; without it their ids are shown"
    parser.add_argument("--tokenizer", type=Path, metavar="PATH", help=text)
    text = "the key of encrypted tokens, as in data.cache.encryption.key_from"
    parser.add_argument("--key-from", metavar="PLACE", help=text)


def profile(options: argparse.Namespace) -> int:
    """Print the profile of a dataset; return the exit code."""
    import json

    from holdfast.bootstrap.operations.profile_data import decoder_of, profile_lines
    from holdfast.bootstrap.operations.profile_html import profile_page, write_page
    from holdfast.bootstrap.wiring.dataset_profile import profile_of

    decode = None if options.tokenizer is None else decoder_of(options.tokenizer)
    dataset = profile_of(options.dataset, options.key_from)
    print(json.dumps(dataset.profile.to_json()) if options.json else "\n".join(profile_lines(dataset, decode)))
    if options.html is not None:
        write_page(options.html, profile_page(dataset, decode))
    return ExitCode.FINISHED


def compare(options: argparse.Namespace) -> int:
    """Print the comparison of two datasets; return the exit code."""
    import json

    from holdfast.bootstrap.operations.profile_data import (
        comparison_json,
        comparison_lines,
        decoder_of,
    )
    from holdfast.bootstrap.operations.profile_html import comparison_page, write_page
    from holdfast.bootstrap.wiring.dataset_profile import profile_of
    from holdfast.domain.data.drift import Level

    decode = None if options.tokenizer is None else decoder_of(options.tokenizer)
    reference, other = (profile_of(path, options.key_from) for path in (options.reference, options.other))
    result = comparison_json(reference, other)
    print(json.dumps(result) if options.json else "\n".join(comparison_lines(reference, other, decode)))
    if options.html is not None:
        write_page(options.html, comparison_page(reference, other, decode))
    has_failed = options.fail_on == "drift" and result["level"] == Level.MAJOR
    return ExitCode.DATA if has_failed else ExitCode.FINISHED
