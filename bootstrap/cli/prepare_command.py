"""The command ``prepare``: tokenizes the data of a run before it trains."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_log_format, add_output, add_settings, json_log
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from holdfast.application.data.pretokenize import Prepared
    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.operations.prepare_data import PreparedAhead
    from holdfast.configs.settings import TrainSettings

_HELP = """\
Takes the settings of `train`, and stores the tokens where `train` with the same settings looks for them; `train` itself
tokenizes what is missing. If it is killed, the same command continues where it stopped.

Several machines that share the folder of the token cache (data.cache.dir) can each make a part, without knowing of each
other: --part 0/8 to --part 7/8, for example as an array of jobs. The one that ends last also completes the data;
--finish does only that. All parts together make the same bytes as one process. With data.dedup or unique fields a part
first looks through its own data, and ends with code 75 if others have not come as far: then start it again.

With --on ray the machines of a Ray cluster make the shards: the cluster of RAY_ADDRESS, or this machine.

examples:
  python -m application prepare
  python -m application prepare data.kind=files data.path='text/**/*.jsonl.zst' data.on_error=skip
  python -m application prepare data.kind=files data.path='s3://bucket/*.parquet' tokenizer.kind=huggingface \\
      tokenizer.path=./gpt2 data.cache.dir=/scratch/tokens
  python -m application prepare --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT --config mine.yaml
  python -m application prepare --on ray --config mine.yaml
"""


def add_prepare(commands: Commands) -> None:
    """Add ``prepare`` to ``commands``."""
    parser = add_command(commands, "prepare", "tokenize the data of a run ahead, on all cores", _HELP, prepare)
    add_settings(parser, may_be_strict=True)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--part", metavar="I/N", help="make only the part I of N, counted from 0")
    where.add_argument("--finish", action="store_true", help="complete the data after all parts have ended")
    where.add_argument("--on", choices=("ray",), help="make the shards on the machines of a cluster")
    add_output(parser, shown="progress and no summary")
    add_log_format(parser)


def prepare(options: argparse.Namespace) -> int:
    """Tokenize the data of a run ahead, and print what was done; return the exit code."""
    from holdfast.bootstrap.cli.arguments import resume_arguments
    from holdfast.bootstrap.operations.prepare_data import left_out_lines
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.program import called_as
    from holdfast.configs.aliases import current_name
    from holdfast.configs.error_messages import one_line
    from holdfast.configs.settings_layers import load_settings

    if (log := json_log(options)) is None:
        configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, [*options.settings, *options.settings_of_flags], os.environ)
    if not options.quiet:
        print_notes(resolved.notes, sys.stderr if options.json else None)
    made = _made(resolved.settings, options)
    if log is not None:
        log.write("result", _figures(made))
    elif options.json:
        print(json.dumps(_figures(made), indent=1))
    if log is not None or options.json or options.quiet:
        return ExitCode.FINISHED
    for line in (*_lines(made.prepared), *left_out_lines(made.prepared, made.rejected)):
        print(line)
    print(f"tokens: {made.folder}")
    if made.num_missing:
        print(f"{made.num_missing:,} of {made.num_shards:,} shards are left to other parts")
        return ExitCode.FINISHED
    for version in made.versions:
        after = f", after {', '.join(version.parents)}" if version.parents else ""
        print(f"version: {version.id} of {one_line(version.name)}{after}")
    pairs = [setting.partition("=") for setting in options.settings]
    options.settings = [f"{current_name(name)}{equals}{value}" for name, equals, value in pairs]
    print(f"try next:   {shlex.join([*called_as(), *resume_arguments(options)])}")
    return ExitCode.FINISHED


def _made(settings: TrainSettings, options: argparse.Namespace) -> PreparedAhead:
    """Return what the options make: a part, all of it here or on a cluster, or only its end."""
    from holdfast.bootstrap.operations.prepare_data import finish_preparation, prepare_ahead
    from holdfast.domain.data.work_part import WHOLE, WorkPart

    if options.on == "ray":
        from holdfast.bootstrap.operations.prepare_on_ray import make_on_ray

        began = time.monotonic()
        new = make_on_ray(settings, is_quiet=options.quiet)
        made = finish_preparation(settings, is_quiet=options.quiet)
        return replace(made, prepared=replace(made.prepared, new_tokens=new, seconds=time.monotonic() - began))
    if options.finish:
        return finish_preparation(settings, is_quiet=options.quiet)
    part = WHOLE if options.part is None else WorkPart.parse(options.part)
    return prepare_ahead(settings, is_quiet=options.quiet, part=part)


def _lines(prepared: Prepared) -> Iterator[str]:
    """Yield lines for a person about the tokens."""
    from holdfast.domain.sizes import counted

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


def _figures(made: PreparedAhead) -> Mapping[str, object]:
    """Return the figures for programs."""
    prepared = made.prepared
    return {
        "cache": str(made.folder),
        "tokens": prepared.tokens,
        "documents": prepared.documents,
        "bytes": prepared.source_bytes,
        "new_tokens": prepared.new_tokens,
        "seconds": round(prepared.seconds, 3),
        "left_out": dict(prepared.drops),
        **({} if prepared.supervised_tokens is None else {"supervised_tokens": prepared.supervised_tokens}),
        "missing_shards": made.num_missing,
        "versions": {version.name: version.id for version in made.versions},
    }
