"""The short commands: `audit`, `completion`, `config`, `explain`, `init`, `inspect`, `pin` and `runs`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import (
    add_checkpoint,
    add_command,
    add_run,
    add_settings,
    choice_of,
    complete_runs,
    run_folder,
    whole,
)
from holdfast.bootstrap.cli.shell_completion import SHELLS, script_of
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.bootstrap.process.program import called_as, in_words_of_caller
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_AUDIT_HELP = """\
Each line of audit.jsonl contains the hash of the line before, so a line that was changed, removed or moved is detected
and reported. Exit code 0: the chain is intact; 4: it is not.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --holding blake3:5f0c...   # fails if lines were cut off after this entry
"""


def add_audit(commands: Commands) -> None:
    """Add ``audit`` to ``commands``."""
    parser = add_command(commands, "audit", "verify the audit log of a run's checkpoints", _AUDIT_HELP, audit)
    text = "a run: its folder, such as runs/default, or its name in runs; or an audit.jsonl"
    complete_runs(parser.add_argument("path", type=_audited, metavar="PATH", help=text))
    parser.add_argument("--holding", metavar="HASH", help="the last hash of the log, as stored elsewhere")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _audited(text: str) -> Path:
    """Return the file ``text``, or the folder of a run."""
    return Path(text) if os.path.isfile(text) else run_folder(text)  # noqa: PTH113  unlike Path.is_file, it never raises


def audit(options: argparse.Namespace) -> int:
    """Verify the audit log of a run; return the exit code."""
    from holdfast.bootstrap.run_folder.run_audit import audit_run

    is_intact = audit_run(options.path, as_json=options.json, holding=options.holding)
    return ExitCode.FINISHED if is_intact else ExitCode.STATE


_COMPLETION_HELP = """\
The tab key then completes commands, options, settings such as optimizer.lea, the values of a setting behind its =, the
ready configurations behind --config, and run folders. It does so for the program `holdfast`, not for
`python -m application`.

examples, each for the start file of the shell:
  eval "$(holdfast completion bash)"      # ~/.bashrc
  eval "$(holdfast completion zsh)"       # ~/.zshrc, behind compinit
  holdfast completion fish | source       # ~/.config/fish/config.fish
"""


def add_completion(commands: Commands) -> None:
    """Add ``completion`` to ``commands``."""
    summary = "print the code by which a shell completes commands"
    parser = add_command(commands, "completion", summary, _COMPLETION_HELP, completion)
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def completion(options: argparse.Namespace) -> int:
    """Print the code for the shell; return the exit code."""
    print(script_of(options.shell))
    return ExitCode.FINISHED


_CONFIG_HELP = """\
Prints the settings as YAML that --config accepts, with the origin of each value. Secrets are masked.

examples:
  %(prog)s --config own_text data.path=texts
  %(prog)s --changed --config own_text
  %(prog)s --describe optimizer.schedule data.cache     # without a name: every setting
  %(prog)s --list
  %(prog)s --schema > settings.schema.json              # editors complete and check YAML by it
"""


def add_config(commands: Commands) -> None:
    """Add ``config`` to ``commands``."""
    parser = add_command(
        commands, "config", "show every setting, its value and where it came from", _CONFIG_HELP, config
    )
    add_settings(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--changed", action="store_true", help="show only settings that differ from their defaults")
    form.add_argument("--describe", action="store_true", help="list settings with their defaults and descriptions")
    form.add_argument("--list", action="store_true", help="list the configurations that come with this package")
    form.add_argument("--schema", action="store_true", help="print the JSON Schema of a file for --config")


def config(options: argparse.Namespace) -> int:
    """Print the resolved settings, or the settings that exist; return the exit code."""
    from holdfast.configs.aliases import current_name
    from holdfast.configs.ready_configurations import list_ready
    from holdfast.configs.rendering import render
    from holdfast.configs.settings_catalog import describe_settings, schema_text
    from holdfast.configs.settings_layers import load_settings

    if options.list:
        print(list_ready())
    elif options.schema:
        print(schema_text())
    elif options.describe:
        print(describe_settings([current_name(setting.partition("=")[0]) for setting in options.settings]))
    else:
        resolved = load_settings(options.config, options.settings, os.environ)
        print(render(resolved, only_changed=options.changed))
    return ExitCode.FINISHED


_EXPLAIN_HELP = """\
Reports the state of the run in the words that `runs --help` lists, at which step, which checkpoint is durable and how
often the run was started; after a failure also the cause and what to try, from post-mortem/ in the run folder. It only
reads.

example:
  %(prog)s runs/default
"""


def add_explain(commands: Commands) -> None:
    """Add ``explain`` to ``commands``."""
    add_run(
        add_command(
            commands, "explain", "report the state of a run, why it ended and what to try", _EXPLAIN_HELP, explain
        )
    )


def explain(options: argparse.Namespace) -> int:
    """Print the state of a run, why it ended and what to try; return the exit code."""
    from holdfast.bootstrap.operations.explain import explain as report
    from holdfast.bootstrap.process.printing import fitting

    print(fitting(report(options.run)))
    return ExitCode.FINISHED


_INIT_HELP = """\
Without a name, the ready configurations are listed. The file is yours to change: each setting that matters has a
comment, and editors that know JSON Schema complete and check the settings. A file that exists is never overwritten.

examples:
  python -m application init
  python -m application init own_text
  python -m application init chat_lora --output my-chats.yaml
"""


def add_init(commands: Commands) -> None:
    """Add ``init`` to ``commands``."""
    parser = add_command(commands, "init", "write a commented file of settings to begin with", _INIT_HELP, init)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from the list")
    text = "the new file; default: NAME.yaml in the current folder"
    parser.add_argument("--output", type=Path, metavar="FILE", help=text)


def init(options: argparse.Namespace) -> int:
    """Write the file, or list the ready configurations; return the exit code."""
    from holdfast.configs.ready_configurations import list_ready, write_copy

    if options.name is None:
        print(list_ready())
        return ExitCode.FINISHED
    path = write_copy(options.name, options.output, " ".join(called_as()))
    command = in_words_of_caller(f"python -m application train --config {shlex.quote(str(path))}")
    print(f"wrote {path}: set the paths in it, then run\n  {command}")
    return ExitCode.FINISHED


_INSPECT_HELP = """\
Reads only, so it is safe while the run trains. Hashes every byte unless --quick is given. The training loss and the
last evaluation of a step come from metrics.jsonl. Exit code 0: every checkpoint verifies; 4: one does not, or there is
none.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --quick
  %(prog)s runs/default/checkpoints/checkpoint-150
  %(prog)s runs/default --best          # or --step 150
  %(prog)s runs/default/quarantine/checkpoint-300.wrong-hash
  %(prog)s runs/default --archive      # also lists the copies in the archive
  %(prog)s runs/default --json > report.json

state of a checkpoint or file:
  verified      its bytes are those that were saved
  complete      with --quick: its names and sizes are those that were saved
  not checked   a problem with the whole checkpoint, which is reported, was found first
  other-schema  it was saved by another version; a resume stops with an error
  unreadable    the disk cannot read it; a resume stops with an error
  erased        its key was destroyed, so it can never be read again
  any other     it is damaged: a resume moves it to quarantine under that name and takes the next older one
"""


def add_inspect(commands: Commands) -> None:
    """Add ``inspect`` to ``commands``."""
    parser = add_command(
        commands, "inspect", "show the checkpoints of a run and whether they verify", _INSPECT_HELP, inspect
    )
    add_checkpoint(parser, "path")
    parser.add_argument("--quick", action="store_true", help="compare only names and sizes, without hashing")
    parser.add_argument("--archive", action="store_true", help="also list the copies in the run's archive")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def inspect(options: argparse.Namespace) -> int:
    """Print the checkpoints of a run and whether they verify; return the exit code."""
    from holdfast.bootstrap.adapter_choice.state_stores import archived_steps
    from holdfast.bootstrap.operations.inspect_run import inspect as look_into
    from holdfast.bootstrap.operations.named_checkpoint import folder_of
    from holdfast.bootstrap.operations.trust import note_trust
    from holdfast.bootstrap.run_folder.record_file import refuse_study
    from holdfast.bootstrap.stages.open_run.screen import phases_shown

    refuse_study(options.path)
    path = folder_of(options.path, choice_of(options))
    copies = archived_steps(options.path) if options.archive else None
    with phases_shown() as show:
        text, is_sound = look_into(path, hashing=not options.quick, as_json=options.json, copies=copies, show=show)
    print(text)
    if not options.json and (note := note_trust(options.path)) is not None:
        print(note)
    return ExitCode.FINISHED if is_sound else ExitCode.STATE


_PIN_HELP = """\
A pinned checkpoint is not deleted, whatever state_store.keep says, until it is released. The run may be training.

examples:
  %(prog)s runs/default 150
  %(prog)s runs/default 150 --release
"""


def add_pin(commands: Commands) -> None:
    """Add ``pin`` to ``commands``."""
    parser = add_command(commands, "pin", "protect a checkpoint of a run from deletion", _PIN_HELP, pin)
    add_run(parser)
    parser.add_argument("step", type=whole(1, 10**18 - 1), metavar="STEP", help="the step of the checkpoint")
    parser.add_argument("--release", action="store_true", help="remove the pin: state_store.keep applies again")


def pin(options: argparse.Namespace) -> int:
    """Pin a checkpoint, or remove its pin; return the exit code. Raises ``StateError`` if the pins are unwritable."""
    from holdfast.adapters.shared.files.file_operations import FileOperations, explain
    from holdfast.adapters.state_store.store_folder import StoreFolder
    from holdfast.bootstrap.run_folder.record_file import refuse_study
    from holdfast.domain.errors import StateError

    refuse_study(options.run)
    folder = StoreFolder(options.run, FileOperations())
    try:
        (folder.unpin if options.release else folder.pin)(options.step)
    except OSError as error:
        msg = f"the pins of {options.run} cannot be changed, {explain(error)}"
        raise StateError(msg) from error
    print(f"checkpoint {options.step} is {'left to state_store.keep' if options.release else 'kept until --release'}")
    return ExitCode.FINISHED


_RUNS_HELP = """\
Reads only, and no checkpoint, so it is safe and fast while runs train. Columns that do not fit the terminal are left
out; --json has all of them. Exit code 0, or 4 if there is no run.

examples:
  %(prog)s
  %(prog)s /scratch/experiments --json

state of a run:
  training         a process trains it now
  starting         a process prepares its data or its model now
  suspended        this process is suspended, for example by Ctrl-Z
  no sign of life  a process holds it, but no heartbeat has come from it for 90 seconds
  finished         its budget is spent or its data have ended
  stopped early    early stopping ended it
  stopped          a signal, a file or the host program asked it to stop; the same command continues it
  failed           an error ended it
  hung             it made no progress, and the watchdog ended it
  crashed          its process ended without a message, for example by SIGKILL or a power cut
"""


def add_runs(commands: Commands) -> None:
    """Add ``runs`` to ``commands``."""
    parser = add_command(commands, "runs", "list the training runs below a folder", _RUNS_HELP, runs)
    text = "the folder that holds the run folders; without it runs/"
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def runs(options: argparse.Namespace) -> int:
    """Print the runs below a folder; return the exit code."""
    from holdfast.bootstrap.operations.list_runs import list_runs
    from holdfast.bootstrap.process.text_table import width_of_output
    from holdfast.configs.sections.run import RunSettings

    folder = RunSettings().directory.parent if options.folder is None else expanded(options.folder)
    print(list_runs(folder, as_json=options.json, width=width_of_output()))
    return ExitCode.FINISHED


_ERASE_HELP = """\
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
    parser = add_command(commands, "erase", summary, _ERASE_HELP, erase)
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
    from holdfast.bootstrap.operations.erase_checkpoints import erase_tokens, token_place_of

    place = token_place_of(options.path)
    if place is None:
        lines = erase_checkpoints(options.path, options.steps, is_sure=options.yes, unencrypted=options.unencrypted)
    else:
        lines = erase_tokens(place, options.steps, is_sure=options.yes, unencrypted=options.unencrypted)
    print("\n".join(lines))
    return ExitCode.FINISHED


_DOCTOR_HELP = """\
Takes the settings of `train`, and checks whether a run with them would work on this machine: versions, extras, devices,
memory, disks, the places on the network that the settings name, ports and the clock. Each line has a verdict and, where
something is wrong, what to do. Nothing is trained, and no file is left behind. Exit code 0: no error, though perhaps
warnings; 1: an error that would keep the run from working; 2: the settings are invalid.

examples:
  %(prog)s
  %(prog)s --config own_text data.path='s3://bucket/*.jsonl.zst'
  %(prog)s --json --config own_text data.path=texts
"""


def add_doctor(commands: Commands) -> None:
    """Add ``doctor`` to ``commands``."""
    parser = add_command(commands, "doctor", "check whether a run would work on this machine", _DOCTOR_HELP, doctor)
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "seconds that a check may take; default: 10"
    parser.add_argument("--timeout", type=whole(1, 3600), default=10, metavar="SECONDS", help=text)


def doctor(options: argparse.Namespace) -> int:
    """Print the findings on this machine for the settings; return the exit code."""
    from holdfast.bootstrap.doctor.diagnosis import diagnose
    from holdfast.bootstrap.doctor.finding import CheckVerdict, as_data, as_lines, worst_of
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.stages.open_run.screen import phases_shown
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, options.settings, os.environ)
    print_notes(resolved.notes, sys.stderr if options.json else None)
    with phases_shown(is_quiet=not sys.stderr.isatty()) as show:
        findings = diagnose(resolved.settings, options.timeout, show)
    if options.json:
        print(json.dumps(as_data(findings), indent=1))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(as_lines(findings, width)))
    return ExitCode.FAILED if worst_of(findings) is CheckVerdict.ERROR else ExitCode.FINISHED
