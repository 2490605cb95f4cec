"""The command ``watch``: shows runs on a live page in the browser."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_runs_of, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_NICENESS = 10
_HELP = """\
Serves a page with the curves, events, checkpoints, samples, settings and log of runs, which moves while they train. It
only reads run folders, so it may be started, ended and started again at any time, also before, during and after a run;
its buttons SAVE and STOP create the files of these names in the run folder. Ctrl-C ends it. Needs the extra page.

Only programs on this machine reach the page, unless a token is given; then each request needs the token. For a page on
another machine, a tunnel needs no token: ssh -L 8473:127.0.0.1:8473 HOST

examples:
  %(prog)s runs/default
  %(prog)s runs/lr-1e-3 runs/lr-3e-3
  %(prog)s runs --read-only                       # all runs below a folder
  %(prog)s runs/default --host 0.0.0.0 --token-from new
"""


def add_watch(commands: Commands) -> None:
    """Add ``watch`` to ``commands``."""
    parser = add_command(commands, "watch", "show runs on a live page in the browser", _HELP, watch)
    add_runs_of(parser, "a run: its folder or its name in runs; or a folder of run folders")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1: this machine only)")
    text = "the port; 0 for any free one (8473, or any free one if that is taken)"
    parser.add_argument("--port", type=whole(0, 65535), metavar="N", help=text)
    text = "where the token is: env:NAME or file:PATH; new for a random one, which is printed"
    parser.add_argument("--token-from", metavar="PLACE", help=text)
    parser.add_argument("--read-only", action="store_true", help="show no buttons, and refuse their requests")
    # for the monitor `page`: end with the process at the other end of standard input
    parser.add_argument("--with-input", action="store_true", help="end when standard input ends")


def watch(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C; return the exit code."""
    from holdfast.bootstrap.web.serve import (
        AccessRules,
        address_of,
        bind,
        check_host,
        check_packages,
        serve,
        token_from,
    )

    check_packages('the command "watch"')
    token = token_from(options.token_from, setting="--token-from")
    check_host(options.host, token, setting="--token-from")

    from holdfast.bootstrap.web.watch_app import RunBoard, watch_app

    if options.with_input:
        os.nice(_NICENESS)  # training comes first
        threading.Thread(target=_end_with_input, name="input", daemon=True).start()
    folders = [Path(os.path.expanduser(run)) for run in options.runs]  # noqa: PTH111  which knows no unknown user
    _raise_file_limit()
    board = RunBoard(folders)
    bound = bind(options.host, options.port)
    end = "" if options.with_input else " (Ctrl-C ends the page; runs go on)"
    shown = address_of(bound) if options.with_input else address_of(bound, token)
    print(f"page: {shown}{end}", flush=True)
    try:
        serve(watch_app(board, AccessRules(token), is_read_only=options.read_only), bound)
    finally:
        board.close()
    return ExitCode.FINISHED


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(ExitCode.FINISHED)


def _raise_file_limit() -> None:
    """Allow as many open files as the system does: the page keeps five open for each run."""
    with suppress(ValueError, OSError):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
