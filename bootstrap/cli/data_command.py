"""The command ``data``: shows and compares the profiles of prepared datasets."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, complete_runs, run_folder, whole
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.domain.urls import expanded

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
    from holdfast.bootstrap.stages.prepare.named_version import profile_of

    decode = None if options.tokenizer is None else decoder_of(options.tokenizer)
    dataset = profile_of(options.dataset, options.key_from)
    print(json.dumps(dataset.profile.to_json()) if options.json else "\n".join(profile_lines(dataset, decode)))
    if options.html is not None:
        from holdfast.bootstrap.web.html_page import write_text
        from holdfast.bootstrap.web.profile_html import profile_page

        write_text(options.html, profile_page(dataset, decode))
    return ExitCode.FINISHED


def compare(options: argparse.Namespace) -> int:
    """Print the comparison of two datasets; return the exit code."""
    import json

    from holdfast.bootstrap.operations.profile_data import comparison_json, comparison_lines, decoder_of
    from holdfast.bootstrap.stages.prepare.named_version import profile_of
    from holdfast.domain.data.drift import Level

    decode = None if options.tokenizer is None else decoder_of(options.tokenizer)
    reference, other = (profile_of(path, options.key_from) for path in (options.reference, options.other))
    result = comparison_json(reference, other)
    print(json.dumps(result) if options.json else "\n".join(comparison_lines(reference, other, decode)))
    if options.html is not None:
        from holdfast.bootstrap.web.html_page import write_text
        from holdfast.bootstrap.web.profile_html import comparison_page

        write_text(options.html, comparison_page(reference, other, decode))
    has_failed = options.fail_on == "drift" and result["level"] == Level.MAJOR
    return ExitCode.DATA if has_failed else ExitCode.FINISHED


_SHOW_HELP = """\
With a VERSION it shows that version of a dataset; exit code 0, or 3 if there is no such version.

With --rows it takes the settings of `train`, reads the first documents of the data, and prints them as a run would pack
them into rows: with the special tokens, and with what is trained on in green, or in double brackets outside of a
terminal. A line of dashes separates the documents of a row, which do not see each other. No tokens are stored. If the
tokenizer is trained on the data, it is trained and stored as in a run.

examples:
  %(prog)s 64ea80397fa6                        # or its beginning, such as 64e
  %(prog)s runs/default                        # the version that the run has read
  %(prog)s tokens/march                        # the newest version of the data named march in the cache tokens
  %(prog)s ~/.cache/holdfast/tokens/38829cb4   # the folder of a dataset
  %(prog)s --rows 5 --config chat_lora.yaml data.path=chats.jsonl
  %(prog)s --rows 2 --config mine.yaml --json > rows.json
"""


def add_show(commands: Commands) -> None:
    """Add ``show`` to ``commands``, the subcommands of ``data``."""
    parser = add_command(commands, "show", "show one version of a dataset, or rows of data", _SHOW_HELP, show)
    text = f"{VERSION}; or with --rows a setting, such as data.path=chats.jsonl"
    parser.add_argument("settings", nargs="*", default=[], metavar="VERSION or key.path=value", help=text)
    parser.add_argument("--rows", type=whole(1, 1000), metavar="N", help="show N rows of the data in the settings")
    text = "with --rows, a YAML file of settings, or the name of a ready configuration; may be repeated, later ones win"
    parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=text)
    add_version_options(parser)


def show(options: argparse.Namespace) -> int:
    """Print a version of a dataset, or the first rows of the data; return the exit code."""
    if options.rows is not None:
        return _show_rows(options)
    from holdfast.bootstrap.operations.dataset_versions import show_version
    from holdfast.domain.errors import ConfigurationError

    if len(options.settings) != 1 or options.config:
        msg = "data show takes one VERSION, or settings with --rows N: name one of them"
        raise ConfigurationError(msg)
    print(show_version(options.settings[0], caches_of(options), as_json=options.json))
    return ExitCode.FINISHED


def _show_rows(options: argparse.Namespace) -> int:
    import json

    from holdfast.bootstrap.operations.show_data import rows_of_data
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.printing import print_notes, report_line
    from holdfast.bootstrap.stages.open_run.screen import phases_shown
    from holdfast.bootstrap.stages.prepare.supervision_proof import has_colors, row_lines
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, options.settings, os.environ)
    print_notes(resolved.notes, sys.stderr)
    with phases_shown(is_quiet=options.json) as phases:
        rows = rows_of_data(resolved.settings, options.rows, report_line, phases)
    if options.json:
        parts = [[[part._asdict() for part in document] for document in row] for row in rows]
        print(json.dumps({"rows": parts}, ensure_ascii=False))
    else:
        print("\n".join(row_lines(rows, is_colored=has_colors(sys.stdout))))
    return ExitCode.FINISHED


_VALIDATE_HELP = """\
Takes the settings of `train`, reads all records once, and applies data.validation and data.transforms as a run would.
Nothing is tokenized or written. It counts the records that would be left out, by reason, with some examples of each.
Duplicates are not searched, and bytes per token are not checked. The exit code is 3 if a run would end with an error:
a record cannot be used and data.on_error is stop, a rule says stop, or more records are rejected than
data.validation.max_rejected allows.

examples:
  %(prog)s --config data.yaml
  %(prog)s data.path='raw/*.jsonl' data.transforms=[gopher_quality,c4]
  %(prog)s --config data.yaml --json > validated.json
"""


def add_validate(commands: Commands) -> None:
    """Add ``validate`` to ``commands``, the subcommands of ``data``."""
    command = add_command(commands, "validate", "check records against the rules of a run", _VALIDATE_HELP, validate)
    add_settings(command, may_be_strict=True)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def validate(options: argparse.Namespace) -> int:
    """Print the records that a run would leave out; return the exit code."""
    import json

    from holdfast.bootstrap.operations.validate_data import validate_data, validation_lines
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.printing import ProgressBar, print_notes
    from holdfast.configs.secret_masking import mask, mask_text
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    resolved = load_settings(options.config, [*options.settings, *options.settings_of_flags], os.environ)
    print_notes(resolved.notes)
    with ProgressBar("validating") as bar:
        validation = validate_data(resolved.settings, bar.show)
    if options.json:
        print(json.dumps(mask(validation.to_json()), indent=1))
    else:
        print(mask_text("\n".join(validation_lines(validation))))
    return ExitCode.FINISHED if validation.problem is None else ExitCode.DATA


DATASET = "a dataset in a token cache, or a run: its folder, such as runs/default, or its name in runs"
_REJECTS_HELP = """\
Lists the place, the rule and the reason of each record that a rule left out with a reason or that cannot be used, and
counts all records that were left out. If the tokens are encrypted, rejected.jsonl has no reasons, and this command
shows them. If HOLDFAST_STATE_STORE__ROLES is set, it must include read, and key for encrypted tokens.

examples:
  %(prog)s ~/.cache/holdfast/tokens                       # the cache holds one dataset
  %(prog)s ~/.cache/holdfast/encrypted-tokens/ID --key-from file:run.key
  %(prog)s ~/.cache/holdfast/tokens/ID --json > rejects.jsonl
"""


def add_rejects(commands: Commands) -> None:
    """Add ``rejects`` to ``commands``, the subcommands of ``data``."""
    command = add_command(commands, "rejects", "list the records that a dataset left out", _REJECTS_HELP, rejects)
    add_dataset(command, "dataset", DATASET)
    command.add_argument("--json", action="store_true", help="print one JSON object for each record")
    text = "the key of encrypted tokens, as in data.cache.encryption.key_from"
    command.add_argument("--key-from", metavar="PLACE", help=text)


def add_dataset(command: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add a dataset, or the run that has read it, to the arguments of ``command``, with the help ``text``."""
    complete_runs(command.add_argument(name, type=_dataset, metavar=name.upper(), help=text))


def _dataset(text: str) -> Path:
    """Return the token cache or the dataset ``text``, or the folder of a run."""
    from holdfast.adapters.shared.token_store.token_folder import MARKER

    path = Path(text)
    markers = (path / MARKER, path.parent / MARKER)
    is_in_cache = any(os.path.isfile(marker) for marker in markers)  # noqa: PTH113  unlike Path.is_file, it never raises
    return path if is_in_cache else run_folder(text)


def rejects(options: argparse.Namespace) -> int:
    """Print the records that a dataset left out; return the exit code."""
    from holdfast.bootstrap.operations.validate_data import reject_lines
    from holdfast.bootstrap.stages.prepare.named_version import open_dataset

    for line in reject_lines(open_dataset(options.dataset, options.key_from), as_json=options.json):
        print(line)
    return ExitCode.FINISHED


_VERSIONS = """\
`prepare` and `train` record a version whenever the data, the tokenizer or a transform is another one. Exit code 0, or 3
if there are no versions.

examples:
  %(prog)s
  %(prog)s /scratch/tokens --json
"""
_DIFF = """\
Names the files, the steps and the figures that differ. Exit code 0, or 3 if there is no such version.

examples:
  %(prog)s 64ea80397fa6 9b3d
  %(prog)s tokens/march tokens/april
  %(prog)s runs/january runs/february --json
"""
VERSION = "an id or its beginning, the name of the data, the folder of a dataset, or a run: its folder or name in runs"


def add_versions(commands: Commands) -> None:
    """Add ``versions`` and ``diff`` to ``commands``, the subcommands of ``data``."""
    parser = add_command(commands, "versions", "list the versions of prepared datasets", _VERSIONS, versions)
    parser.add_argument("cache", nargs="?", type=Path, metavar="CACHE", help=_help_of_cache())
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser = add_command(commands, "diff", "show the differences between two versions of a dataset", _DIFF, diff)
    parser.add_argument("before", metavar="BEFORE", help=VERSION)
    parser.add_argument("after", metavar="AFTER", help="the same")
    add_version_options(parser)


def add_version_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands on versions to ``parser``."""
    parser.add_argument("--cache", type=Path, metavar="CACHE", help=_help_of_cache())
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _help_of_cache() -> str:
    return "the token cache, data.cache.dir; without it those in HOLDFAST_RUN__CACHE_DIR or ~/.cache/holdfast"


def versions(options: argparse.Namespace) -> int:
    """Print the versions in a token cache; return the exit code."""
    from holdfast.bootstrap.operations.dataset_versions import list_versions
    from holdfast.bootstrap.process.text_table import width_of_output

    print(list_versions(caches_of(options), as_json=options.json, width=width_of_output()))
    return ExitCode.FINISHED


def diff(options: argparse.Namespace) -> int:
    """Print the differences between two versions of a dataset; return the exit code."""
    from holdfast.bootstrap.operations.dataset_versions import diff_versions

    print(diff_versions(options.before, options.after, caches_of(options), as_json=options.json))
    return ExitCode.FINISHED


def caches_of(options: argparse.Namespace) -> list[Path]:
    """Return the token caches to look for versions in."""
    from holdfast.bootstrap.operations.dataset_versions import usual_caches

    return usual_caches() if options.cache is None else [expanded(options.cache)]
