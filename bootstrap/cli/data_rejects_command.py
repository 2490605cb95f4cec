"""The command ``data rejects``: the records that a prepared dataset left out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

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
    command.add_argument("dataset", type=Path, metavar="DATASET", help="a dataset in a token cache, or a run folder")
    command.add_argument("--json", action="store_true", help="print one JSON object for each record")
    text = "the key of encrypted tokens, as in data.cache.encryption.key_from"
    command.add_argument("--key-from", metavar="PLACE", help=text)


def rejects(options: argparse.Namespace) -> int:
    """Print the records that a dataset left out; return the exit code."""
    from holdfast.bootstrap.operations.list_rejects import reject_lines
    from holdfast.bootstrap.wiring.open_dataset import open_dataset

    for line in reject_lines(open_dataset(options.dataset, options.key_from), as_json=options.json):
        print(line)
    return ExitCode.FINISHED
