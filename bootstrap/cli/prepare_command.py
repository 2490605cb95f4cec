"""The command ``prepare``: tokenizes the data of a run before it trains."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

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
    add_settings(add_command(commands, "prepare", "tokenize the data of a run ahead, on all cores", _HELP, prepare))


def prepare(options: argparse.Namespace) -> int:
    """Tokenize the data of a run ahead, and print what was done; return the exit code."""
    from holdfast.bootstrap.cli.begin_run import resume_arguments
    from holdfast.bootstrap.operations.prepare_data import prepare_ahead
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.program import called_as
    from holdfast.configs.settings_layers import load_settings
    from holdfast.domain.counting import counted

    configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, options.settings, os.environ)
    print_notes(resolved.notes)
    location, prepared, rejected = prepare_ahead(resolved.settings)
    documents = counted(prepared.documents, "document")
    print(f"{prepared.tokens:,} tokens of {documents}, {prepared.source_bytes:,} bytes of data")
    if prepared.new_tokens:
        rate = prepared.new_tokens / max(prepared.seconds, 1e-3)
        print(f"{prepared.new_tokens:,} of them new, in {prepared.seconds:.1f} s: {rate:,.0f} tokens/s")
    else:
        print("all of them were there already")
    if rejected:
        print(f"{counted(len(rejected), 'record')} rejected, beginning with:")
        print("".join(f"    {record['reason']}\n" for record in rejected[:5]), end="")
    print(f"tokens: {location}")
    print(f"try next:   {shlex.join([*called_as(), *resume_arguments(options)])}")
    return ExitCode.FINISHED
