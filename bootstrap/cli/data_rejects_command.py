"""The command ``data rejects``: the records that a prepared dataset left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, complete_runs, run_folder
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

DATASET = "a dataset in a token cache, or a run: its folder, such as runs/default, or its name in runs"
_HELP = """\
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
    command = add_command(commands, "rejects", "list the records that a dataset left out", _HELP, rejects)
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
    from holdfast.bootstrap.operations.list_rejects import reject_lines
    from holdfast.bootstrap.wiring.open_dataset import open_dataset

    for line in reject_lines(open_dataset(options.dataset, options.key_from), as_json=options.json):
        print(line)
    return ExitCode.FINISHED
