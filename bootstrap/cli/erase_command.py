"""The command ``erase``: makes checkpoints or encrypted tokens unreadable for good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Destroys the wrapped data keys of encrypted checkpoints in the run folder, its quarantine and its archive, so that they
can never be read again, and deletes the rest; each erasure is a line of audit.jsonl. Without STEP it erases all but the
newest and the pinned checkpoints, and the records of single documents: rejected.jsonl, and the ledger of kind sqlite.
The run must not be training. If HOLDFAST_STATE_STORE__ROLES is set, it must include delete.

For an encrypted token cache (the folder of data.cache.dir, or that of one dataset in it) it destroys the keys of all
shards and deletes the records of their versions; a record in .erased/ remains. No process may be using the cache. A
later run tokenizes again.

examples:
  %(prog)s runs/default              # lists what would be erased
  %(prog)s runs/default --yes
  %(prog)s runs/default 100 200 --yes
  %(prog)s ~/.cache/holdfast/encrypted-tokens --yes
"""


def add_erase(commands: Commands) -> None:
    """Add ``erase`` to ``commands``."""
    summary = "make checkpoints of a run, or encrypted tokens, unreadable for good"
    parser = add_command(commands, "erase", summary, _HELP, erase)
    text = "the folder of a run, such as runs/default (not its name alone), or of an encrypted token cache"
    parser.add_argument("path", type=Path, metavar="PATH", help=text)
    step = whole(1, 10**18 - 1)
    parser.add_argument("steps", type=step, nargs="*", default=[], metavar="STEP", help="the step of a checkpoint")
    parser.add_argument("--yes", action="store_true", help="erase; without this, only list what would be erased")
    text = "also delete unencrypted checkpoints, whose bytes may remain on the disk"
    parser.add_argument("--unencrypted", action="store_true", help=text)


def erase(options: argparse.Namespace) -> int:
    """Erase checkpoints of a run, or the tokens of an encrypted cache, or list them; return the exit code."""
    from holdfast.bootstrap.operations.erase_checkpoints import erase as erase_checkpoints
    from holdfast.bootstrap.operations.erase_tokens import erase_tokens, token_place_of

    place = token_place_of(options.path)
    if place is None:
        lines = erase_checkpoints(options.path, options.steps, is_sure=options.yes, unencrypted=options.unencrypted)
    else:
        lines = erase_tokens(place, options.steps, is_sure=options.yes, unencrypted=options.unencrypted)
    print("\n".join(lines))
    return ExitCode.FINISHED
