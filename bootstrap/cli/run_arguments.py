"""The commands that train a model, and those that use a trained one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_checkpoint, add_command, add_settings, add_trust, whole
from holdfast.bootstrap.process.exit_codes import EXIT_CODES

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_MODEL = "holdfast.bootstrap.cli.model_commands"

_TRAIN_HELP = """\
Without any setting it trains a small Llama on this machine's Python standard library for about two minutes.
The same command continues an unfinished run from its newest valid checkpoint.

examples:
  python -m application train
  python -m application train data.kind=files data.path='text/**/*.jsonl.gz'
  python -m application train --config configs/quickstart.yaml optimizer.learning_rate=1e-3
  python -m application train run.name=gpt2 model.path=./gpt2
  python -m application train --supervise run.name=long run.budget.steps=100000
  python -m application train --from-step 300 optimizer.learning_rate=1e-4   # again from there, another way

settings, weakest first: defaults, --config files, HOLDFAST_SECTION__KEY=value in the environment, key.path=value.
`python -m application config` shows each value and where it came from, `config --describe` what each is for.

"""


_PREPARE_HELP = """\
Takes the settings of `train`, and leaves the tokens where `train` with the same settings looks for them; `train` itself
prepares what is missing. Killed at any moment, the same command goes on where it was.

examples:
  python -m application prepare
  python -m application prepare data.kind=files data.path='text/**/*.jsonl.zst' data.on_error=skip
  python -m application prepare data.kind=files data.path='s3://bucket/*.parquet' tokenizer.kind=huggingface \\
      tokenizer.path=./gpt2 data.cache.dir=/scratch/tokens
"""

_CONFIG_HELP = """\
Prints the settings as YAML that --config accepts, with the origin of each value. Secrets are masked.

examples:
  %(prog)s --config own_text data.path=texts
  %(prog)s --changed --config own_text
  %(prog)s --describe optimizer.schedule data.cache     # without a name: every setting
  %(prog)s --list
"""

_GENERATE_HELP = """\
Takes the newest valid checkpoint unless --step, --best or the folder of a checkpoint names another. The text is shown
as it is written. If the model has too few positions, fewer tokens are written, and a line says so.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --best --prompt 'def main' --temperature 0
  %(prog)s runs/default/checkpoints/checkpoint-300
"""

_EVALUATE_HELP = """\
Takes the newest valid checkpoint unless --step, --best or the folder of a checkpoint names another, and measures it on
the documents that its run held out, as the run itself does, or on all documents of other data: --data names files, and
settings of data any other source. Row length, transforms and data.text_field are then the run's unless they are set.
evaluation.max_tokens is how many tokens are measured at most.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --step 300
  %(prog)s runs/default --best --data test.jsonl data.text_field=body evaluation.max_tokens=1000000
  %(prog)s runs/default data.kind=huggingface data.path=roneneldan/TinyStories data.split=validation
"""

_EXPORT_HELP = """\
Takes the newest valid checkpoint unless --step, --best or the folder of a checkpoint names another. The adapters of a
run with model.lora are written as PEFT loads them, or with --merged as a whole model, which needs no PEFT.

examples:
  %(prog)s runs/default ./model
  %(prog)s runs/tuned ./model --merged
  %(prog)s runs/default ./model --best
"""


def add_run_commands(commands: Commands) -> None:
    """Add them to ``commands``."""
    _add_train(commands)
    _add_prepare(commands)
    _add_config(commands)
    _add_generate(commands)
    _add_evaluate(commands)
    _add_export(commands)


def _add_train(commands: Commands) -> None:
    train = add_command(commands, "train", "train a model, or go on training it", _TRAIN_HELP + EXIT_CODES)
    add_settings(train)
    begin = train.add_mutually_exclusive_group()
    begin.add_argument("--fresh", action="store_true", help="set an older run folder aside (never deleted); begin anew")
    text = "go back to the checkpoint of this step; later ones are moved to superseded/"
    begin.add_argument("--from-step", type=whole(1, 10**18 - 1), metavar="N", help=text)
    train.add_argument("--supervise", action="store_true", help="train in another process; start it again if it dies")
    train.add_argument(
        "--accept-changed-data",
        action="store_true",
        help="continue a run though its data are others than when it began",
    )
    train.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> int:
    if options.supervise:  # which is there while the run starts, and imports nothing heavy
        from holdfast.bootstrap.cli.supervise import supervise

        return supervise(options)
    from holdfast.bootstrap.cli.run_commands import train

    return train(options)


def _add_prepare(commands: Commands) -> None:
    add_settings(add_command(commands, "prepare", "tokenize the data of a run ahead, on all cores", _PREPARE_HELP))


def _add_config(commands: Commands) -> None:
    config = add_command(commands, "config", "show every setting, its value and where it came from", _CONFIG_HELP)
    add_settings(config)
    form = config.add_mutually_exclusive_group()
    form.add_argument("--changed", action="store_true", help="show only what is not left at its default")
    form.add_argument("--describe", action="store_true", help="list settings, their defaults and what they are for")
    form.add_argument("--list", action="store_true", help="list the configurations that come with this package")


def _add_generate(commands: Commands) -> None:
    generate = add_command(commands, "generate", "continue a text with a trained model", _GENERATE_HELP, module=_MODEL)
    add_checkpoint(generate)
    add_trust(generate)
    generate.add_argument("--prompt", default="", help="text to continue; without it the model begins a document")
    generate.add_argument("--max-new-tokens", type=whole(1), default=128, metavar="N", help="default: 128")
    generate.add_argument(
        "--temperature", type=_temperature, default=0.8, metavar="T", help="0 takes the likeliest token"
    )
    generate.add_argument(
        "--top-k", type=whole(0), default=50, metavar="K", help="draw among the K likeliest; 0 means all"
    )
    generate.add_argument("--seed", type=whole(0), default=0, metavar="S", help="another seed gives another text")


def _add_evaluate(commands: Commands) -> None:
    summary = "measure a trained model on its held-out documents"
    evaluate = add_command(commands, "evaluate", summary, _EVALUATE_HELP, module=_MODEL)
    add_checkpoint(evaluate)
    add_trust(evaluate)
    text = "a file, folder or pattern to measure on in place of what the run held out; repeat it"
    evaluate.add_argument("--data", action="append", default=[], metavar="PATH", help=text)
    text = "a setting of data or evaluation, such as data.text_field=body"
    evaluate.add_argument("settings", nargs="*", metavar="key.path=value", help=text)


def _add_export(commands: Commands) -> None:
    export = add_command(
        commands, "export", "write a trained model as a folder of Hugging Face", _EXPORT_HELP, module=_MODEL
    )
    add_checkpoint(export)
    add_trust(export)
    export.add_argument("folder", type=Path, metavar="FOLDER", help="where to write: a new folder, or an empty one")
    export.add_argument("--merged", action="store_true", help="add a run's adapters to their model: a whole one")


def _temperature(text: str) -> float:
    number = float(text)
    if not 0.0 <= number < float("inf"):
        raise ValueError
    return number


_temperature.__name__ = "temperature"
