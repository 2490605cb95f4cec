"""The commands ``data versions`` and ``data diff``: the versions of prepared datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.domain.home_folder import expanded

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

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
