"""The exit codes of the program, and the end of a process with one of them."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from holdfast.domain.fault_tolerance.restart_policy import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

EXIT_CODES = """\
exit codes:
  0 finished   1 failed   2 configuration   3 data   4 state (checkpoints, run folder)
  75           a new process is needed: run the same command again
  129 / 130 / 138 / 143
                    stopped by SIGHUP (terminal closed) / SIGINT / SIGUSR1 / SIGTERM, with a checkpoint saved: the same
                    command continues
"""

_PARTING_SECONDS = 2.0
_SIGNALED = 128
_OUR_PACKAGE = "holdfast"
_OF_A_PATH = {
    *(errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.EIO, errno.ENOSPC),
    *(errno.EDQUOT, errno.EFBIG, errno.ESTALE, errno.EMFILE, errno.ENFILE),
}
"""Errors that no mistake of this program causes."""
_NO_TEMPORARY = "No usable temporary directory"  # the words of Python's tempfile
_NO_MEMORY = (
    "this machine, or the limit of this process (ulimit -v, the container), has too little memory: free some, "
    "raise the limit, or choose a smaller model.size"
)
_NO_THREAD = (
    "the system lets this process start no further thread: raise its limit of memory (ulimit -v), "
    "of processes (ulimit -u) or of the container (pids.max)"
)


class ExitCode(IntEnum):
    """The exit codes of every command; a process that signal N stopped ends with ``code_of_signal(N)``."""

    FINISHED = 0
    """Finished or stopped early, or there was nothing left to train."""
    FAILED = 1
    """Any other error, such as one in the code of another package's entry point; ``doctor``: an error would keep a run
    from working."""
    CONFIGURATION = 2
    """The settings or the arguments are invalid, or an entry point that they name cannot be imported or constructed."""
    DATA = 3
    """A source, file or record cannot be used; a rule says ``stop``, more records were rejected than
    ``data.validation.max_rejected`` allows, or ``data.drift.action=stop`` found major drift; ``data compare`` with
    ``--fail-on drift``: a figure drifted; ``data validate``: a run would end with an error; ``data``: there is no such
    version."""
    STATE = 4
    """A checkpoint or a run folder cannot be written, read or trusted; ``verify-resume``: the resumed run differs;
    ``drill``: a fault was not survived; ``export``: the loss rises by more than is allowed."""
    RESTART_NEEDED = 75  # EX_TEMPFAIL of sysexits.h
    """The same command continues from the newest checkpoint or the last complete step, and tokenizes damaged parts of
    the data again."""


def code_of_signal(number: int) -> int:
    """Return the exit code of a process that the signal ``number`` stopped, as a shell reports it."""
    return _SIGNALED + number


def code_of_child(returncode: int) -> int:
    """Return the exit code of a child as a shell reports it; Python's is negative after a signal."""
    return returncode if returncode >= 0 else code_of_signal(-returncode)


STOPPING_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
"""The signals at which a run saves and stops."""

_STOPPED = {code_of_signal(number) for number in STOPPING_SIGNALS}
_FINAL = {ExitCode.FINISHED, ExitCode.CONFIGURATION, ExitCode.DATA, *_STOPPED}


def final_codes() -> frozenset[int]:
    """Return the exit codes of a run after which a new start is of no use, or was not wanted."""
    return frozenset(map(int, _FINAL))


def ending_of(code: int) -> Ending:
    """Return the meaning of the exit ``code`` of a run for its restart."""
    if code == ExitCode.RESTART_NEEDED:
        return Ending.RESTART_NEEDED
    return Ending.FINAL if code in _FINAL else Ending.CRASHED


def cause_of(code: int) -> str:
    """Return a phrase for the end of a run with the exit code ``code``."""
    if code == ExitCode.RESTART_NEEDED:
        return "needed a new process, or hung"
    try:
        return f"was killed by {signal.Signals(code - _SIGNALED).name}"
    except ValueError:
        return f"failed with code {code}"


def guarded(command: Callable[[], int]) -> int:
    """Return the exit code of ``command``, or the code of the error that it raised, after printing the error.

    Raises ``SystemExit`` again, unless the code of an entry point raised it.
    """
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; Python would complain about it at exit
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return code_of_signal(signal.SIGINT)
    except SystemExit as error:
        if (sentence := _sentence_on(error)) is None:
            raise
        return _failed(sentence, error)
    except Exception as error:  # noqa: BLE001  the last line of defence
        return _code_of(error)
    else:
        return code


def _code_of(error: Exception) -> int:
    """Return the exit code of ``error``, after printing it."""
    from holdfast.configs.secret_masking import mask_text
    from holdfast.domain import errors

    if isinstance(error, FileNotFoundError) and _NO_TEMPORARY in str(error):
        from holdfast.adapters.shared.files.file_operations import without_temporary_folder

        error = errors.ConfigurationError(without_temporary_folder(error))
    if isinstance(error, errors.TrainingError):
        codes = {
            errors.ConfigurationError: ExitCode.CONFIGURATION,
            errors.TokensLost: ExitCode.RESTART_NEEDED,
            errors.DataError: ExitCode.DATA,
            errors.StateError: ExitCode.STATE,
            errors.RestartNeeded: ExitCode.RESTART_NEEDED,
        }
        code = next((code for kind, code in codes.items() if isinstance(error, kind)), ExitCode.FAILED)
        return _failed(str(error), error if isinstance(error, errors.PluginFailed) else None, code)
    if (sentence := _sentence_on(error)) is not None:
        return _failed(sentence, error)
    print(mask_text("".join(traceback.format_exception(error))), file=sys.stderr, end="")
    print(f"error: an unexpected {type(error).__name__}: please report it with the lines above", file=sys.stderr)
    return ExitCode.FAILED


def _failed(sentence: str, error: BaseException | None, code: ExitCode = ExitCode.FAILED) -> int:
    """Print ``sentence`` and where the traceback of ``error`` lies, if that is known; return ``code``."""
    from holdfast.bootstrap.process.printing import as_error
    from holdfast.configs.secret_masking import mask_text

    where = "" if error is None else _where(error)
    print(as_error(f"error: {mask_text(sentence)}{where}"), file=sys.stderr)
    return code


def _sentence_on(error: Exception | SystemExit) -> str | None:
    """Return a sentence on an error of a plugin or of the system, None if it may be a mistake here."""
    from holdfast.bootstrap.process.printing import output_trouble

    if isinstance(error, OSError | SystemExit) and (trouble := output_trouble(error)) is not None:
        return trouble
    ranks = sys.modules.get("holdfast.adapters.shared.network.ranks")  # if it was not imported, there is no other
    if ranks is not None and (sentence := ranks.sentence_on_lost_peers(error)) is not None:
        return str(sentence)
    plugins = sys.modules.get("holdfast.bootstrap.adapter_choice.plugins")  # if it was not imported, no plugin was
    if plugins is not None and (sentence := plugins.blame(error)) is not None:
        return str(sentence)
    return _sentence_of_system(error)


def _sentence_of_system(error: Exception | SystemExit) -> str | None:
    from holdfast.bootstrap.process.printing import trouble_without_path

    if isinstance(error, OSError) and error.errno in _OF_A_PATH and error.filename is not None:
        from holdfast.adapters.shared.files.file_operations import explain

        return f"{error.filename} cannot be used, {explain(error)}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return _NO_MEMORY
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":  # the words of Python's threading
        return _NO_THREAD
    return trouble_without_path(error) if isinstance(error, OSError) else None


def _where(error: BaseException) -> str:
    """Return the end of a sentence that names the file with the traceback of an error in another package."""
    from holdfast.bootstrap.run_folder.post_mortem import WHERE

    notes = (note for note in getattr(error, "__notes__", ()) if isinstance(note, str))  # a library may add its own
    return next((f"; {note}" for note in notes if note.startswith(WHERE)), "")


def end_with(command: Callable[[], int]) -> NoReturn:
    """Run ``command`` and end this process with the exit code that it returns.

    A process that still belongs to a process group of torch skips the teardown of the interpreter once its exit
    handlers have run: the threads of gloo abort an interpreter during its teardown (pytorch/pytorch#190489, #179291),
    and a finished run would be reported as a crash. The teardown is also skipped if a thread of this program is still
    busy after two seconds, for example with the import of a library. Raises the errors of ``command``.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # the handler that is registered first runs last
    try:
        codes.append(command())
    except SystemExit as end:
        codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except BaseException:
        codes.append(ExitCode.FAILED)
        raise
    sys.exit(codes[0])


def leave_for_restart() -> NoReturn:
    """End this process at once, without any cleanup, so that its supervisor or launcher starts a new one."""
    os._exit(ExitCode.RESTART_NEEDED)


def _leave(codes: Sequence[int]) -> None:
    distributed = sys.modules.get("torch.distributed")
    is_in_group = distributed is not None and distributed.is_initialized()
    if codes and (is_in_group or not _let_own_threads_end(_PARTING_SECONDS)):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # closed, or its reader or disk is gone
                stream.flush()
        os._exit(codes[0])


def _let_own_threads_end(seconds: float) -> bool:
    """Wait at most ``seconds`` for all other threads that run code of this program; return whether all ended.

    An interpreter that shuts down while a thread is in native code, such as an import, may abort. Libraries end their
    own threads.
    """
    deadline = time.monotonic() + seconds
    for thread in _own_threads():
        thread.join(max(0.0, deadline - time.monotonic()))
    return not _own_threads()


def _own_threads() -> list[threading.Thread]:
    """Return the other threads with code of this program in their call stack."""
    frames = sys._current_frames()  # noqa: SLF001  documented in spite of its name
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return [thread for thread in others if thread.ident in frames and any(map(_is_ours, _stack(frames[thread.ident])))]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _OUR_PACKAGE
