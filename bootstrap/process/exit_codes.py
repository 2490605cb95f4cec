"""Exit codes: how a command's errors end this process."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from holdfast.bootstrap.process.own_threads import let_own_threads_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXIT_CODES = """\
exit codes:
  0 finished   1 failed   2 configuration   3 data   4 state (checkpoints, run folder)
  75           a new process is needed: run the same command again
  129 / 130 / 138 / 143
                    stopped by SIGHUP (terminal closed) / SIGINT / SIGUSR1 / SIGTERM, with a checkpoint saved: the same
                    command continues
"""

_PARTING_SECONDS = 2.0


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


def _leave(codes: Sequence[int]) -> None:
    distributed = sys.modules.get("torch.distributed")
    is_in_group = distributed is not None and distributed.is_initialized()
    if codes and (is_in_group or not let_own_threads_end(_PARTING_SECONDS)):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # its reader or its disk has gone, or it was closed
                stream.flush()
        os._exit(codes[0])
