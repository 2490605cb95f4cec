"""The command line."""

from __future__ import annotations

import argparse
import atexit
import io
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from holdfast.bootstrap.cli.arguments import takes_settings
from holdfast.bootstrap.cli.option_form import as_settings, hint_for
from holdfast.bootstrap.cli.run_arguments import EXIT_CODES, add_run_commands
from holdfast.bootstrap.cli.state_arguments import add_state_commands
from holdfast.bootstrap.process.own_threads import let_own_threads_end
from holdfast.bootstrap.process.program import called_as

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PARTING_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. A user's mistake is one sentence on standard error, never a traceback."""
    _prepare_streams()
    parser, settable = _parser()
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    if given[:1] and given[0] in settable:
        given = as_settings(given)
    options, others = parser.parse_known_args(given)
    is_settable = hasattr(options, "settings")
    if strange := [other for other in others if other.startswith("-") or "=" not in other or not is_settable]:
        hint = f"; {hint_for(strange[0])}" if is_settable else ""
        parser.error(f"unrecognized arguments: {' '.join(strange)}{hint}")
    if others:  # settings behind an option, which argparse does not take where another word came before
        options.settings += others
    command: Callable[[argparse.Namespace], int] = options.command
    return guarded(lambda: command(options))


def guarded(command: Callable[[], int]) -> int:
    """Return the exit code of ``command``, or that of the error that it raised, which is told."""
    from holdfast.bootstrap.process.printing import as_error
    from holdfast.configs.secret_masking import mask_text
    from holdfast.domain import errors

    try:
        return command()
    except errors.TrainingError as error:
        where = _where(error) if isinstance(error, errors.PluginFailed) else ""
        print(as_error(f"error: {mask_text(str(error))}{where}"), file=sys.stderr)
        codes = {
            errors.ConfigurationError: 2,
            errors.TokensLost: 75,
            errors.DataError: 3,
            errors.StateError: 4,
            errors.RestartNeeded: 75,
        }
        return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; Python would complain about it at exit
        return 1
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:  # the last line of defence
        from holdfast.bootstrap.wiring.plugins import blame

        if (sentence := blame(error)) is not None:
            print(as_error(f"error: {mask_text(sentence)}{_where(error)}"), file=sys.stderr)
            return 1
        if isinstance(error, SystemExit):
            raise
        print(mask_text(traceback.format_exc()), file=sys.stderr, end="")
        print(f"error: an unexpected {type(error).__name__}: please report it with the lines above", file=sys.stderr)
        return 1


def _where(error: BaseException) -> str:
    """Return where the traceback of what another package raised is, as the end of a sentence."""
    from holdfast.bootstrap.run_folder.post_mortem import WHERE

    notes = (note for note in getattr(error, "__notes__", ()) if isinstance(note, str))  # a library may add its own
    return next((f"; {note}" for note in notes if note.startswith(WHERE)), "")


def end_with(command: Callable[[], int]) -> NoReturn:
    """Run ``command`` and end this process with the exit code that it returns.

    A process that still belongs to a group of torch's ends as soon as all that was registered for its end since then
    has run: gloo's threads abort an interpreter that is torn down under them (pytorch/pytorch#190489, #179291), and a
    run that finished would be told as one that died. So does a process in which a thread of ours is still in the middle
    of something, such as the import of a library, after two seconds.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # what is registered first is called last
    try:
        codes.append(command())
    except SystemExit as end:
        codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except BaseException:
        codes.append(1)
        raise
    sys.exit(codes[0])


def run() -> NoReturn:
    """Run the command line as a program of its own."""
    end_with(main)


def _leave(codes: Sequence[int]) -> None:
    distributed = sys.modules.get("torch.distributed")
    is_in_group = distributed is not None and distributed.is_initialized()
    if codes and (is_in_group or not let_own_threads_end(_PARTING_SECONDS)):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader or its disk has gone, or it was closed
                stream.flush()
        os._exit(codes[0])


def _prepare_streams() -> None:
    """Let no stream that is closed, or that cannot write every letter of a model's text, end a command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order, so that no file of the run gets the number of the stream
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class _Version(argparse.Action):
    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"holdfast {version('holdfast')}")
        parser.exit()


def _parser() -> tuple[argparse.ArgumentParser, set[str]]:
    """Return the parser, and the commands that take settings."""
    parser = argparse.ArgumentParser(
        prog=" ".join(called_as()),
        description="Holdfast trains language models without losing the run.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_run_commands(commands)
    add_state_commands(commands)
    return parser, {name for name, command in commands.choices.items() if takes_settings(command)}
