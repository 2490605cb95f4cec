"""The command ``generate``: continues a text with a trained model."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import (
    add_checkpoint,
    add_command,
    add_sampling,
    add_trust,
    add_weights,
    choice_of,
)
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Uses the newest valid checkpoint unless --step, --best or the folder of a checkpoint selects another.
The prompt of a run on conversations (data.task=chat) is a message of the user, and the reply is printed; with --plain
it is continued as text.
The text is printed as it is generated. If the model has too few positions, fewer tokens are generated, and a line on
standard error says so.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --best --prompt 'def main' --temperature 0
  %(prog)s runs/default/checkpoints/checkpoint-300
"""


def add_generate(commands: Commands) -> None:
    """Add ``generate`` to ``commands``."""
    parser = add_command(commands, "generate", "continue a text with a trained model", _HELP, generate)
    add_checkpoint(parser)
    add_weights(parser)
    add_trust(parser)
    parser.add_argument("--prompt", default="", help="text to continue; without it the model starts a document")
    parser.add_argument("--plain", action="store_true", help="continue the prompt as text, without a chat template")
    add_sampling(parser)


def generate(options: argparse.Namespace) -> int:
    """Print a continuation of the prompt; return the exit code."""
    from holdfast.bootstrap.operations.named_checkpoint import place_of
    from holdfast.bootstrap.operations.trained_model import open_trained
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.run_folder.run_audit import record_use
    from holdfast.bootstrap.wiring.screen import phases_shown
    from holdfast.domain.training.text_generation import Sampling

    configure_logging()
    set_library_defaults()
    sampling = Sampling(options.max_new_tokens, options.temperature, options.top_k, options.top_p, options.seed)
    choice = choice_of(options)
    with phases_shown() as show:
        trained = open_trained(options.run, choice=choice, trusted=stated_trust(options), show=show)
    record_use(place_of(options.run, choice).path, "TextGenerated", {"location": trained.location})
    is_chat = trained.chat_template is not None and options.prompt and not options.plain
    written = trained.reply if is_chat else trained.stream
    written(options.prompt, sampling, _show, partial(print, file=sys.stderr))
    print()
    return ExitCode.FINISHED


def _show(text: str) -> None:
    from holdfast.bootstrap.process.printing import visible

    print(visible(text), end="", flush=True)
