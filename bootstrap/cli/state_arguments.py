"""The commands about the state of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_checkpoint, add_command, add_run, add_settings, whole
from holdfast.bootstrap.verification.fault_catalog import DRILLS, SOAK
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_INSPECT_HELP = """\
Reads only, and may look at a run while it trains. All bytes are hashed, unless --quick is given. The training loss and
the last evaluation of a step are those of metrics.jsonl. Exit code 0 says that every checkpoint verifies, 4 that one
does not or that there is none.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --quick
  %(prog)s runs/default/checkpoints/checkpoint-350
  %(prog)s runs/default --best          # or --step 350
  %(prog)s runs/default/quarantine/checkpoint-300.wrong-hash
  %(prog)s runs/default --archive      # asks the archive too
  %(prog)s runs/default --json > report.json

state of a checkpoint or file:
  verified      its bytes are those that were saved
  complete      with --quick: its names and sizes are those that were saved
  not checked   a problem of the whole checkpoint, which is named, came first
  other-schema  it was saved by another version; unreadable: the disk refuses it; both stop a resume with an error
  erased        its key was destroyed, so that nobody can read it
  any other     it is damaged: a resume sets it aside under that name and takes the next older one
"""

_AUDIT_HELP = """\
Each line of audit.jsonl names the hash of the line before: a change, a removal, another order are found and named. Exit
code 0 says that the chain is whole, 4 that it is not.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --holding blake3:5f0c...   # that this entry is still there: shows what was cut off the end
"""

_EXPLAIN_HELP = """\
Tells in plain words whether the run is running, finished, stopped, failed or killed, at which step, what is durable,
how often it was started, and after a failure its cause and what to try, from post-mortem/ in its folder. It only reads.

example:
  %(prog)s runs/default
"""

_PIN_HELP = """\
A pinned checkpoint is not deleted, whatever state_store.keep says, until it is released; a run may train meanwhile.

examples:
  %(prog)s runs/default 350
  %(prog)s runs/default 350 --release
"""

_ERASE_HELP = """\
Destroys the wrapped data keys of encrypted checkpoints, in the run folder, its quarantine and its archive, so that
nobody can read them any more, and deletes the rest; each is a line of audit.jsonl. Without STEP all but the newest and
the pinned ones. The run must not train meanwhile; HOLDFAST_STATE_STORE__ROLES, if it is set, must name delete.

Of an encrypted token cache (the folder of data.cache.dir, or that of one dataset in it) it destroys the keys of all
shards, and leaves a record in .erased/ there; no process may use the cache meanwhile. A run afterwards tokenizes again.

examples:
  %(prog)s runs/default              # what would be erased
  %(prog)s runs/default --yes
  %(prog)s runs/default 300 350 --yes
  %(prog)s ~/.cache/holdfast/encrypted-tokens --yes
"""

_DRILL_HELP = """\
Takes the settings of `train` and trains a few of its steps in a folder beside run.dir, which is removed in the end:
once without interruption, and once for each drill, in which something befalls the run. If it ends, the same command is
started again, as `train --supervise` does. Then losses, positions in the data and the last checkpoints are compared.

examples:
  %(prog)s kill
  %(prog)s all --config configs/own_text.yaml
  %(prog)s oom run.name=mine --json
  %(prog)s soak --faults 100           # all that applies, at random, in one supervised run

exit code 0: the run survived each, and ended as its configuration promises; 4: it did not, or the fault did not come.

drills:
"""

_VERIFY_RESUME_HELP = """\
Takes the settings of `train` and trains a few of its steps in a folder beside run.dir, which is removed in the end:
once without interruption, and once killed (SIGKILL) with steps behind its last checkpoint and resumed by a new process.
Data, model, seed, schedule, optimizer, processes and encryption are those of the run, and so are handlers of other
packages; evaluation, profile, archive and other monitors are off. Then the loss and gradient norm of each step, the
positions in the data and every byte of the last checkpoints are compared.

examples:
  %(prog)s
  %(prog)s --config configs/own_text.yaml --steps 12
  %(prog)s run.name=mine --json > proof.json

exit code 0: bit for bit, or within rounding where no more is promised (run.deterministic=false, or conditions that make
a checkpoint's contract numerical); 4: not; any other: a run failed with it. Within rounding is: the same positions, and
each loss and gradient norm within a share of 0.001 (0.01 in half precision).
"""


def add_state_commands(commands: Commands) -> None:
    """Add them to ``commands``."""
    _add_inspect(commands)
    add_run(add_command(commands, "explain", "say how a run stands, why it ended and what to try", _EXPLAIN_HELP))
    _add_pin(commands)
    _add_erase(commands)
    _add_audit(commands)
    _add_verify_resume(commands)
    _add_drill(commands)


def drill_numbers(options: argparse.Namespace) -> tuple[int, int, int]:
    """Return steps, faults and seed for `drill`; raises ``ConfigurationError`` for one that has no use there."""
    is_soak = options.drill == "soak"
    for name in ["steps"] if is_soak else ["faults", "seed"]:
        if getattr(options, name) is not None:
            why = "its faults say how long a soak is" if is_soak else "it is for `drill soak`"
            msg = f"--{name} has no use in `drill {options.drill}`, {why}: leave it out"
            raise ConfigurationError(msg)
    return options.steps or 6, options.faults or 20, 1 if options.seed is None else options.seed


def _add_inspect(commands: Commands) -> None:
    inspect = add_command(commands, "inspect", "show the checkpoints of a run and whether they verify", _INSPECT_HELP)
    add_checkpoint(inspect, "path")
    inspect.add_argument("--quick", action="store_true", help="compare names and sizes only; hash nothing")
    inspect.add_argument("--archive", action="store_true", help="ask the run's archive which copies it holds")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")


def _add_pin(commands: Commands) -> None:
    pin = add_command(commands, "pin", "keep a checkpoint of a run from being deleted", _PIN_HELP)
    add_run(pin)
    pin.add_argument("step", type=whole(1, 10**18 - 1), metavar="STEP", help="the step of the checkpoint")
    pin.add_argument("--release", action="store_true", help="leave it to state_store.keep again")


def _add_erase(commands: Commands) -> None:
    summary = "make checkpoints of a run, or encrypted tokens, unreadable for good"
    erase = add_command(commands, "erase", summary, _ERASE_HELP)
    text = "a run folder, such as runs/default, or the folder of an encrypted token cache"
    erase.add_argument("path", type=Path, metavar="PATH", help=text)
    step = whole(1, 10**18 - 1)
    erase.add_argument("steps", type=step, nargs="*", metavar="STEP", help="the step of a checkpoint")
    erase.add_argument("--yes", action="store_true", help="do it; without this, only tell")
    erase.add_argument("--unencrypted", action="store_true", help="delete plain ones too, which a disk may remember")


def _add_audit(commands: Commands) -> None:
    audit = add_command(commands, "audit", "verify what is recorded of a run's checkpoints", _AUDIT_HELP)
    audit.add_argument("path", type=Path, metavar="PATH", help="a run folder, or an audit.jsonl")
    audit.add_argument("--holding", metavar="HASH", help="a last hash that was kept elsewhere")
    audit.add_argument("--json", action="store_true", help="print one JSON object")


def _add_drill(commands: Commands) -> None:
    text = _DRILL_HELP + "".join(f"  {name:14}{words}\n" for name, words in {**DRILLS, "soak": SOAK}.items())
    drill = add_command(commands, "drill", "put a fault into a short run, and see whether it survives", text)
    drill.add_argument(
        "drill", choices=[*DRILLS, "soak", "all", "list"], metavar="DRILL", help="a name below, all or list"
    )
    add_settings(drill)
    drill.add_argument("--steps", type=whole(3), metavar="N", help="steps to train, but for soak; default: 6")
    drill.add_argument("--faults", type=whole(1), metavar="N", help="faults of a soak; default: 20")
    drill.add_argument("--seed", type=whole(0), metavar="N", help="what draws the faults of a soak; default: 1")
    drill.add_argument("--keep", action="store_true", help="leave the folder of all runs, and name it")
    drill.add_argument("--json", action="store_true", help="print one JSON object a drill")


def _add_verify_resume(commands: Commands) -> None:
    summary = "show that a run with these settings resumes exactly"
    verify_resume = add_command(commands, "verify-resume", summary, _VERIFY_RESUME_HELP)
    add_settings(verify_resume)
    verify_resume.add_argument("--steps", type=whole(3), default=6, metavar="N", help="steps to train; default: 6")
    verify_resume.add_argument("--keep", action="store_true", help="leave the folder of both runs, and name it")
    verify_resume.add_argument("--json", action="store_true", help="print one JSON object")
