"""The command ``prepare``: tokenizes the data of a run before it trains."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_output, add_settings
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.pretokenize import Prepared
    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.domain.data.dataset_version import DatasetVersion

_HELP = """\
Takes the settings of `train`, and stores the tokens where `train` with the same settings looks for them; `train` itself
tokenizes what is missing. If it is killed, the same command continues where it stopped.

examples:
  python -m application prepare
  python -m application prepare data.kind=files data.path='text/**/*.jsonl.zst' data.on_error=skip
  python -m application prepare data.kind=files data.path='s3://bucket/*.parquet' tokenizer.kind=huggingface \\
      tokenizer.path=./gpt2 data.cache.dir=/scratch/tokens
"""


def add_prepare(commands: Commands) -> None:
    """Add ``prepare`` to ``commands``."""
    parser = add_command(commands, "prepare", "tokenize the data of a run ahead, on all cores", _HELP, prepare)
    add_settings(parser)
    add_output(parser, shown="progress and no summary")


def prepare(options: argparse.Namespace) -> int:
    """Tokenize the data of a run ahead, and print what was done; return the exit code."""
    from holdfast.bootstrap.cli.begin_run import resume_arguments
    from holdfast.bootstrap.operations.prepare_data import left_out_lines, prepare_ahead
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.program import called_as
    from holdfast.configs.aliases import current_name
    from holdfast.configs.error_messages import one_line
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, options.settings, os.environ)
    if not options.quiet:
        print_notes(resolved.notes, sys.stderr if options.json else None)
    location, prepared, rejected, versions = prepare_ahead(resolved.settings, is_quiet=options.quiet)
    if options.json:
        print(json.dumps(_figures(location, prepared, versions), indent=1))
    if options.json or options.quiet:
        return ExitCode.FINISHED
    for line in (*_lines(prepared), *left_out_lines(prepared, rejected)):
        print(line)
    print(f"tokens: {location}")
    for version in versions:
        after = f", after {', '.join(version.parents)}" if version.parents else ""
        print(f"version: {version.id} of {one_line(version.name)}{after}")
    pairs = [setting.partition("=") for setting in options.settings]
    options.settings = [f"{current_name(name)}{equals}{value}" for name, equals, value in pairs]
    print(f"try next:   {shlex.join([*called_as(), *resume_arguments(options)])}")
    return ExitCode.FINISHED


def _lines(prepared: Prepared) -> Iterator[str]:
    """Yield lines for a person about the tokens."""
    from holdfast.domain.counting import counted

    documents = counted(prepared.documents, "document")
    yield f"{prepared.tokens:,} tokens of {documents}, {prepared.source_bytes:,} bytes of data"
    if prepared.new_tokens:
        rate = prepared.new_tokens / max(prepared.seconds, 1e-3)
        yield f"{prepared.new_tokens:,} of them new, in {prepared.seconds:.1f} s: {rate:,.0f} tokens/s"
    else:
        yield "all of them were there already"
    if prepared.supervised_tokens is not None:
        share = prepared.supervised_tokens / max(1, prepared.tokens)
        yield f"{prepared.supervised_tokens:,} of them, {share:.1%}, are trained on"


def _figures(location: Path, prepared: Prepared, versions: Sequence[DatasetVersion]) -> Mapping[str, object]:
    """Return the figures for programs."""
    return {
        "cache": str(location),
        "tokens": prepared.tokens,
        "documents": prepared.documents,
        "bytes": prepared.source_bytes,
        "new_tokens": prepared.new_tokens,
        "seconds": round(prepared.seconds, 3),
        "left_out": dict(prepared.drops),
        **({} if prepared.supervised_tokens is None else {"supervised_tokens": prepared.supervised_tokens}),
        "versions": {version.name: version.id for version in versions},
    }
