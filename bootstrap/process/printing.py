"""Lines for a person on a standard stream."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap
import unicodedata
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, final

from holdfast.bootstrap.stages.open_run.screen import phases_shown
from holdfast.domain.phase import Amount
from holdfast.domain.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

_NARROWEST = 40
_OF_A_STREAM = {errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ESTALE, errno.EBADF}


def fitting(text: str, stream: TextIO | None = None) -> str:
    """Return ``text`` wrapped for the terminal ``stream`` (standard output if None); unchanged if it is no terminal."""
    if not (stream or sys.stdout).isatty():
        return text
    width = max(shutil.get_terminal_size().columns, _NARROWEST)
    return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in text.splitlines())


def visible(text: str, stream: TextIO | None = None) -> str:
    """Return ``text`` for ``stream``, standard output if None: in a terminal with its control characters as pictures.

    They could change the terminal, and may come from a file that is anybody's.
    """
    return "".join(map(_picture, text)) if (stream or sys.stdout).isatty() else text


def _picture(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) != "Cc":
        return character
    return chr(0x2400 + ord(character)) if ord(character) < 32 else "\N{REPLACEMENT CHARACTER}"


def as_error(text: str) -> str:
    """Return an error for standard error: red in a terminal, unless NO_COLOR is set."""
    fitted = fitting(visible(text, sys.stderr), sys.stderr)
    is_plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return fitted if is_plain else f"\x1b[31m{fitted}\x1b[0m"


def print_notes(notes: Iterable[str], stream: TextIO | None = None) -> None:
    """Print each of the ``notes`` about settings as one line to ``stream``, or to standard output if it is None."""
    for note in notes:
        print(fitting(note, stream), file=stream, flush=True)


@contextmanager
def unread_output_dropped() -> Iterator[None]:
    """Leave the block once standard output takes no more, and drop the rest of the output.

    Its reader or its terminal has gone, or its disk is full, for good or for a moment, which standard error says.
    Raises the other errors of the block.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        trouble = output_trouble(error) or trouble_without_path(error)
        if trouble is None:
            raise
        if error.errno not in (errno.EPIPE, errno.EIO):
            report_line(f"warning: {trouble}; the rest of the output is left out")


def output_trouble(error: OSError | SystemExit) -> str | None:
    """Return why standard output takes no more, None if it does; then the rest of the output is dropped.

    ``error`` may be what a write to it raised.
    """
    try:
        if isinstance(error, OSError) and trouble_without_path(error) is not None:
            sys.stdout.write("\n")  # as a write that failed may leave nothing to flush
        sys.stdout.flush()
    except OSError as refusal:
        from holdfast.adapters.shared.files.file_operations import explain

        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())  # else Python complains about the rest when it exits
        os.close(nothing)
        return f"standard output cannot be written, {explain(refusal)}"
    return None


def trouble_without_path(error: OSError) -> str | None:
    """Return what ``error`` says of a disk that failed in mid-file, None if it is of another kind or names a path."""
    from holdfast.adapters.shared.files.file_operations import explain

    if error.filename is not None or error.errno not in _OF_A_STREAM:
        return None
    return f"standard output or a file could not be written or read, {explain(error)}"


def print_line(line: str) -> None:
    """Print ``line`` on standard output, unless its reader has gone."""
    with unread_output_dropped():
        sys.stdout.write(f"{line}\n")


def report_line(line: str) -> None:
    """Print ``line`` on standard error, wrapped for a terminal, unless its reader or its terminal has gone."""
    with suppress(OSError):
        sys.stderr.write(f"{fitting(visible(line, sys.stderr), sys.stderr)}\n")
        sys.stderr.flush()


def short(location: str) -> str:
    """Return a path as seen from the current folder, if it lies there and the folder still exists."""
    path = Path(location)
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return location
    return str(path.relative_to(here)) if path.is_relative_to(here) else location


@final
class ProgressBar:
    """Shows the bytes done, their rate and the time left on standard error, unless ``is_quiet``.

    Where there is no terminal, it prints a line after ten seconds and then once a minute.
    """

    def __init__(self, title: str, *, is_quiet: bool = False) -> None:
        self._title = title
        self._stack = ExitStack()
        self._phases = phases_shown(is_quiet=is_quiet)

    def __enter__(self) -> Self:
        self._show = self._stack.enter_context(self._phases)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes are done."""
        self._show(f"{self._title} {shown_size(total)}", Amount(done, total))
