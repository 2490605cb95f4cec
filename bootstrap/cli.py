"""The command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_EXIT_CODES = """\
exit codes:
  0 finished   1 failed   2 configuration   3 data   4 state (checkpoints, run folder)
  130 / 143    stopped by SIGINT / SIGTERM with a checkpoint saved: the same command goes on
"""

_TRAIN_HELP = """\
Without any setting it trains a small Llama on this machine's Python standard library for about two minutes.
The same command continues an unfinished run from its newest valid checkpoint.

examples:
  python -m application train
  python -m application train run.name=mine data.kind=files data.path='text/**/*.jsonl.gz'
  python -m application train --config configs/quickstart.yaml optimizer.learning_rate=1e-3
  python -m application train run.name=gpt2 model.path=./gpt2 tokenizer.kind=huggingface tokenizer.path=./gpt2

settings, weakest first: defaults, --config files, HOLDFAST_SECTION__KEY=value in the environment, key.path=value.
`python -m application config` shows each value and where it came from, `config --describe` what each is for.

"""


_PREPARE_HELP = """\
Takes the settings of `train`, and leaves the tokens where `train` with the same settings looks for them; `train` itself
prepares what is missing. Killed at any moment, the same command goes on where it was.

examples:
  python -m application prepare
  python -m application prepare data.kind=files data.path='text/**/*.jsonl.zst' data.on_error=skip
  python -m application prepare data.kind=files data.path='s3://bucket/*.parquet' tokenizer.kind=huggingface \
      tokenizer.path=./gpt2 data.cache.dir=/scratch/tokens
"""

_EXPORT_HELP = """\
Takes the newest valid checkpoint. The adapters of a run with model.lora are written as PEFT loads them, or with
--merged as a whole model, which needs no PEFT.

examples:
  %(prog)s runs/default ./model
  %(prog)s runs/tuned ./model --merged
"""

_INSPECT_HELP = """\
Reads only, and may look at a run while it trains. All bytes are hashed, unless --quick is given. The training loss and
the last evaluation of a step are those of metrics.jsonl. Exit code 0 says that every checkpoint verifies, 4 that one
does not or that there is none.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --quick
  %(prog)s runs/default/checkpoints/checkpoint-350
  %(prog)s runs/default/quarantine/checkpoint-300.wrong-hash
  %(prog)s runs/default --json > report.json

state of a checkpoint or file:
  verified      its bytes are those that were saved
  complete      with --quick: its names and sizes are those that were saved
  not checked   a problem of the whole checkpoint, which is named, came first
  other-schema  it was saved by another version; unreadable: the disk refuses it; both stop a resume with an error
  any other     it is damaged: a resume sets it aside under that name and takes the next older one
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. A user's mistake is one sentence on standard error, never a traceback."""
    from configs.masking import mask_text
    from domain.errors import ConfigurationError, DataError, StateError, TrainingError

    _prepare_streams()
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except TrainingError as error:
        print(f"error: {mask_text(str(error))}", file=sys.stderr)
        codes = {ConfigurationError: 2, DataError: 3, StateError: 4}
        return next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; Python would complain about it at exit
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  the last line of defence
        traceback.print_exc()
        print(f"error: an unexpected {type(error).__name__}: please report it with the lines above", file=sys.stderr)
        return 1


def _prepare_streams() -> None:
    """Let no stream that is closed, or that cannot write every letter of a model's text, end a command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # in this order, so that no file of the run gets the number of the stream
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m application",
        description="Holdfast trains language models without losing the run.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_train(commands)
    _add_prepare(commands)
    _add_config(commands)
    _add_generate(commands)
    _add_evaluate(commands)
    _add_export(commands)
    _add_inspect(commands)
    return parser


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = _add(commands, "train", "train a model, or go on training it", _TRAIN_HELP + _EXIT_CODES)
    _add_settings(train)
    train.add_argument("--fresh", action="store_true", help="set an older run folder aside (never deleted); begin anew")


def _add_prepare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_settings(_add(commands, "prepare", "tokenize the data of a run ahead, on all cores", _PREPARE_HELP))


def _add_config(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Prints the settings as YAML that --config accepts, with the origin of each value. Secrets are masked."
    config = _add(commands, "config", "show every setting, its value and where it came from", text)
    _add_settings(config)
    config.add_argument("--describe", action="store_true", help="list every setting, its default and what it is for")


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    generate = _add(commands, "generate", "continue a text with a trained model", "example:\n  %(prog)s runs/default")
    _add_run(generate)
    generate.add_argument("--prompt", default="", help="text to continue; without it the model begins a document")
    generate.add_argument("--max-new-tokens", type=_whole(1), default=128, metavar="N", help="default: 128")
    generate.add_argument(
        "--temperature", type=_temperature, default=0.8, metavar="T", help="0 takes the likeliest token"
    )
    generate.add_argument(
        "--top-k", type=_whole(0), default=50, metavar="K", help="draw among the K likeliest; 0 means all"
    )
    generate.add_argument("--seed", type=_whole(0), default=0, metavar="S", help="another seed gives another text")


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Measures the newest valid checkpoint on the documents that its run held out, as the run itself does."
    _add_run(_add(commands, "evaluate", "measure a trained model on its held-out documents", text))


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = _add(commands, "export", "write a trained model as a folder of Hugging Face", _EXPORT_HELP)
    _add_run(export)
    export.add_argument("folder", type=Path, metavar="FOLDER", help="where to write: a new folder, or an empty one")
    export.add_argument("--merged", action="store_true", help="add a run's adapters to their model: a whole one")


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = _add(commands, "inspect", "show the checkpoints of a run and whether they verify", _INSPECT_HELP)
    inspect.add_argument("path", type=Path, metavar="PATH", help="a run folder, or the folder of one checkpoint")
    inspect.add_argument("--quick", action="store_true", help="compare names and sizes only; hash nothing")
    inspect.add_argument("--json", action="store_true", help="print one JSON object")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, text: str
) -> argparse.ArgumentParser:
    def call(options: argparse.Namespace) -> int:
        from bootstrap import commands as implementations

        implementation: Callable[[argparse.Namespace], int] = getattr(implementations, name)
        return implementation(options)

    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=call)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file; repeat it, later ones win",
    )
    parser.add_argument("settings", nargs="*", metavar="key.path=value", help="a setting, such as run.seed=7")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/default")


def _whole(smallest: int, largest: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not smallest <= number <= largest:
            raise ValueError
        return number

    parse.__name__ = f"whole number from {smallest} to {largest}"  # argparse shows it
    return parse


def _temperature(text: str) -> float:
    number = float(text)
    if not 0.0 <= number < float("inf"):
        raise ValueError
    return number


_temperature.__name__ = "temperature"
