"""The command ``chat``: talks to trained models, on a page in the browser or in the terminal."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Self, final

from holdfast.bootstrap.cli.arguments import (
    BEST_HELP,
    add_checkpoint,
    add_command,
    add_runs_of,
    add_sampling,
    add_trust,
    add_weights,
    base_of,
    choice_of,
    whole,
)
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.operations.chat_models import ChatModel
    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.domain.training.text_generation import Sampling

_HELP = """\
Serves a page on this machine and prints its address. Several run folders, or several steps, answer side by side.
If the tokenizer has a chat template, the model takes part in a conversation; otherwise it continues plain text.
Other machines can reach the page only with --host and --token-from. It needs the extra "page"; --terminal does not.

examples:
  %(prog)s runs/default
  %(prog)s runs/first runs/second
  %(prog)s runs/default --step 100,150
  %(prog)s runs/default --terminal --temperature 0
"""


def add_chat(commands: Commands) -> None:
    """Add ``chat`` to ``commands``."""
    parser = add_command(commands, "chat", "talk to trained models, in the browser or in the terminal", _HELP, chat)
    text = "a run: its folder or its name in runs; or the folder of one checkpoint; several answer side by side"
    add_runs_of(parser, text)
    choice = parser.add_mutually_exclusive_group()
    text = "use the checkpoints of these steps of each RUN, not the newest"
    choice.add_argument("--step", type=_steps, metavar="N[,N...]", help=text)
    choice.add_argument("--best", action="store_true", help=BEST_HELP)
    add_weights(parser)
    parser.add_argument("--plain", action="store_true", help="continue plain text also if there is a chat template")
    add_sampling(parser)
    parser.add_argument("--terminal", action="store_true", help="talk in the terminal; no page")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1, this machine only")
    text = "the port of the page, 0 for any free one; default: 8473, or any free one if that is taken"
    parser.add_argument("--port", type=whole(0, 65535), metavar="PORT", help=text)
    text = "where the token is: env:NAME or file:PATH; new for a random one, which is printed"
    parser.add_argument("--token-from", metavar="PLACE", help=text)
    add_trust(parser)


def chat(options: argparse.Namespace) -> int:
    """Serve the page, or talk in the terminal, until the user ends it; return the exit code."""
    from holdfast.bootstrap.operations.chat_models import open_chat_models
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.stages.open_run.screen import phases_shown
    from holdfast.domain.training.text_generation import Sampling

    configure_logging()
    set_library_defaults()
    sampling = Sampling(options.max_new_tokens, options.temperature, options.top_k, options.top_p, options.seed)
    choices = _choices(options)
    chosen = [(run, choice) for run in options.runs for choice in choices]
    with nullcontext() if options.terminal else _Page(options) as page:
        with phases_shown() as show:
            models = open_chat_models(chosen, trusted=stated_trust(options), show=show)
        if page is not None:
            page.serve(models, sampling)
            return ExitCode.FINISHED
    from holdfast.bootstrap.cli.chat_terminal import ChatTerminal

    return ChatTerminal(models, sampling, is_plain=options.plain).run(sys.stdin)


def _choices(options: argparse.Namespace) -> Sequence[Choice]:
    from holdfast.bootstrap.operations.named_checkpoint import Choice

    base = base_of(options, options.runs)
    if options.step:
        return [Choice(step, trained=options.trained, base=base) for step in options.step]
    return [Choice(best=options.best, trained=options.trained, base=base)]


@final
class _Page:
    """The page of the command; its address is taken before the models are opened, which may take minutes.

    Raises ``ConfigurationError`` without the extra, or if the page cannot be served there.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        from holdfast.bootstrap.web.serve import bind, check_host, check_packages, token_from

        check_packages('the command "chat" without --terminal')
        self._is_plain = options.plain
        self._token = token_from(options.token_from, setting="--token-from")
        check_host(options.host, self._token, setting="--token-from")
        self._bound = bind(options.host, options.port)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the address back."""
        self._bound.close()

    def serve(self, models: Sequence[ChatModel], sampling: Sampling) -> None:
        """Serve the page until Ctrl-C."""
        from holdfast.bootstrap.web.chat_app import chat_app
        from holdfast.bootstrap.web.serve import AccessRules, address_of, serve

        for model in models:
            how = "chat template" if model.has_template and not self._is_plain else "plain continuation"
            print(f"{model.name}: {model.trained.location} ({how})")
        print(f"page: {address_of(self._bound, self._token)} (Ctrl-C ends it)", flush=True)
        serve(chat_app(models, sampling, AccessRules(self._token), plain=self._is_plain), self._bound)


def _steps(text: str) -> Sequence[int]:
    return [whole(1, 10**18 - 1)(step) for step in text.split(",")]


_steps.__name__ = "list of steps"  # argparse prints it


_GENERATE_HELP = """\
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
    parser = add_command(commands, "generate", "continue a text with a trained model", _GENERATE_HELP, generate)
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
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.run_folder.run_audit import record_use
    from holdfast.bootstrap.stages.open_run.screen import phases_shown
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
