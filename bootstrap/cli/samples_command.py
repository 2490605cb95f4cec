"""The command ``samples``: finds the documents in a step, and the steps with a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_run, add_trust, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Works for any run, also while it trains: the order of the data is computed again, and no database is needed. Data that
are streamed are read again, from the nearest checkpoint before the step, or from their start for --document.
A document has an id of 16 hexadecimal digits, made from its text before any transform. data.exclude takes these ids.

examples:
  %(prog)s runs/default --step 120
  %(prog)s runs/default --step 120 --text        # --full shows the whole text
  %(prog)s runs/default --spike
  %(prog)s runs/default --document 00f3a1b2c4d5e6f7
  %(prog)s runs/default --text-of page.txt --json

columns:
  row          the row of the step's batch that holds the piece, from 0
  position     where the document begins in its unit (a file), as data sources count
  epoch        the pass over the source, from 1
  first token  the token of the document with which the piece begins, from 0
"""


def add_samples(commands: Commands) -> None:
    """Add ``samples`` to ``commands``."""
    summary = "show the documents in a step, or the steps with a document"
    parser = add_command(commands, "samples", summary, _HELP, samples)
    add_run(parser)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--step", type=whole(1, 10**18 - 1), metavar="N", help="show the documents that step N trained on"
    )
    asked.add_argument("--document", metavar="ID", help="show the steps that trained on the document with this id")
    asked.add_argument("--text-of", metavar="FILE", help="the same for the document with the text of FILE")
    text = "show the steps around the worst jump of the loss, with the text of their documents"
    asked.add_argument("--spike", action="store_true", help=text)
    parser.add_argument("--text", action="store_true", help="with --step: show the text of each piece, shortened")
    parser.add_argument("--full", action="store_true", help="show the whole text of each piece")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_trust(parser)


def samples(options: argparse.Namespace) -> int:
    """Print the report that ``options`` ask for; return the exit code."""
    from holdfast.bootstrap.operations.samples_report import (
        Form,
        documents_of_spike,
        documents_of_step,
        steps_of_document,
    )
    from holdfast.bootstrap.operations.traced_run import open_traced
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.run_folder.run_audit import record_use
    from holdfast.bootstrap.stages.open_run.screen import phases_shown

    configure_logging()
    set_library_defaults()
    documents = _documents_of(options)
    form = Form(options.text or options.full or options.spike, options.full, options.json)
    with phases_shown() as show:
        run = open_traced(options.run, trusted=stated_trust(options), show=show)
        if options.spike:
            report = documents_of_spike(run, form)
        elif documents:
            report = steps_of_document(run, documents, form)
        else:
            report = documents_of_step(run, options.step, form)
    record_use(options.run, "SamplesShown", {"with_text": form.has_text and not documents})
    print(report)
    return ExitCode.FINISHED


def _documents_of(options: argparse.Namespace) -> Sequence[int]:
    """Return the ids that ``options`` name, none without such an option.

    A file gives two: editors end a file with a line end that the document may lack.
    """
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import explain
    from holdfast.domain.data.exclusion import id_of
    from holdfast.domain.data.holdout import hash_of
    from holdfast.domain.errors import ConfigurationError

    if options.document is not None:
        document = id_of(options.document)
        if document is None:
            msg = f"{options.document!r} is not the id of a document: an id has 16 hexadecimal digits"
            raise ConfigurationError(msg)
        return [document]
    if options.text_of is None:
        return []
    try:
        text = Path(options.text_of).read_bytes().decode("utf-8")
    except OSError as error:
        msg = f"{options.text_of} cannot be read, {explain(error)}"
        raise ConfigurationError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{options.text_of} is not text in UTF-8: byte {error.start} is no part of it"
        raise ConfigurationError(msg) from error
    return sorted({hash_of(text), hash_of(text.removesuffix("\n").removesuffix("\r"))})
