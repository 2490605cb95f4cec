"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from holdfast.bootstrap.cli.shell_completion import configurations_for, runs_for, settings_for
from holdfast.bootstrap.process.program import in_words_of_caller
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.bootstrap.process.json_log import JsonLog
    from holdfast.configs.settings import TrainSettings

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  argparse names it nowhere else

BEST_HELP = "use the best checkpoint: by early stopping, or without it by the lowest evaluation loss"


def add_command(
    commands: Commands, name: str, summary: str, text: str, action: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Add the command ``name``, which calls ``action``; return its parser."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=in_words_of_caller(text),
        formatter_class=HelpFormat,
    )
    parser.set_defaults(command=action)
    return parser


def add_settings(parser: argparse.ArgumentParser, *, may_be_strict: bool = False) -> None:
    """Add the settings to a command's arguments, and ``--strict``, whose setting is in ``settings_of_flags``."""
    parser.set_defaults(takes_settings=True)
    config = parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file, or the name of a ready configuration (config --list); may be repeated, later ones win",
    )
    settings = parser.add_argument(
        "settings", nargs="*", default=[], metavar="key.path=value", help="a setting, such as run.seed=7"
    )
    if may_be_strict:
        text = "end with an error if the data hold what is not used: short for data.strict=true"
        parser.add_argument(
            "--strict",
            dest="settings_of_flags",
            action="store_const",
            const=["data.strict=true"],
            default=[],
            help=text,
        )
    _complete_by(config, configurations_for)
    _complete_by(settings, settings_for)


def _complete_by(argument: argparse.Action, completer: Callable[..., Iterable[str]]) -> None:
    """Have the shell offer what ``completer`` returns for ``argument``."""
    vars(argument)["completer"] = completer  # by which argcomplete finds it


def complete_runs(argument: argparse.Action) -> None:
    """Have the shell offer runs for ``argument``."""
    _complete_by(argument, runs_for)


def takes_settings(parser: argparse.ArgumentParser) -> bool:
    """Return whether ``add_settings`` was called for the parser of a command."""
    return parser.get_default("takes_settings") is True


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add a run, by name or folder, to a command's arguments."""
    text = "a run: its folder, such as runs/default, or its name in runs"
    complete_runs(parser.add_argument("run", type=run_folder, metavar="RUN", help=text))


def add_runs_of(parser: argparse.ArgumentParser, text: str) -> None:
    """Add one or more runs, by name or folder, to a command's arguments, with the help ``text``."""
    complete_runs(parser.add_argument("runs", type=run_folder, nargs="+", metavar="RUN", help=text))


def run_folder(text: str) -> Path:
    """Return the folder of a run: ``text`` itself, or, if it is a name without a slash, that folder in ``runs``.

    If both exist, the one that holds the record of a run is meant, and ``text`` itself if both or neither do.
    """
    path, by_name = Path(text), Path("runs", text)
    is_name = "/" not in text and path.name not in ("", "..")
    if not is_name or not os.path.isdir(by_name):  # noqa: PTH112  unlike Path.is_dir, it never raises
        return path
    if not os.path.exists(path):  # noqa: PTH110  unlike Path.exists, it never raises
        return by_name
    return by_name if _holds_run(by_name) and not _holds_run(path) else path


def _holds_run(folder: Path) -> bool:
    from holdfast.bootstrap.run_folder.layout import RECORD

    return os.path.isfile(folder / RECORD)  # noqa: PTH113  unlike Path.is_file, it never raises


def add_checkpoint(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """Add a run folder or the folder of one checkpoint, under ``name``, and the choice of a checkpoint in a run."""
    text = "a run: its folder, such as runs/default, or its name in runs; or the folder of one checkpoint"
    complete_runs(parser.add_argument(name, type=run_folder, metavar="RUN", help=text))
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--step", type=whole(1, 10**18 - 1), metavar="N", help="use the checkpoint of step N, not the newest"
    )
    choice.add_argument("--best", action="store_true", help=BEST_HELP)


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add the choice of the weights to a command's arguments: trained or averaged ones, and the base of adapters."""
    text = "use the trained weights of a run with optimizer.ema, not their average"
    parser.add_argument("--trained", action="store_true", help=text)
    text = "the model that the adapters of RUN belong to (model.lora), a folder or hub name; default: as in training"
    parser.add_argument("--base", metavar="PATH", help=text)


def add_output(parser: argparse.ArgumentParser, *, shown: str) -> None:
    """Add the options for programs to a command's arguments; ``shown`` are the things that ``--quiet`` leaves out."""
    text = "print one JSON object at the end, and nothing else on standard output"
    parser.add_argument("--json", action="store_true", help=text)
    parser.add_argument("--quiet", action="store_true", help=f"print problems only: no {shown}")


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add the form of the log to a command's arguments."""
    text = "json: events, metrics and messages as JSON lines on standard output; nothing is printed on standard error"
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=text)


def json_log(options: argparse.Namespace) -> JsonLog | None:
    """Return the log of this process as JSON lines, None without ``--log-format json``.

    Raises ``ConfigurationError`` if ``--json`` is given too.
    """
    if options.log_format != "json":
        return None
    if options.json:
        msg = "--json and --log-format json both say what is on standard output: leave one of them out"
        raise ConfigurationError(msg)
    from holdfast.bootstrap.process.json_log import log_as_json

    return log_as_json(is_quiet=options.quiet)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options that trust code which a run's settings name."""
    text = "allow code that the run's settings name, as model.trust_remote_code=PATH or optimizer.kind=NAME; repeatable"
    parser.add_argument("--trust", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "a YAML file of yours: the code that it trusts is trusted here too"
    parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=text)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sampling of tokens."""
    parser.add_argument("--max-new-tokens", type=whole(1), default=128, metavar="N", help="default: 128")
    text = "0 always takes the most likely token; default: 0.8"
    parser.add_argument("--temperature", type=temperature, default=0.8, metavar="T", help=text)
    text = "sample from the K most likely tokens, 0 from all; default: 50"
    parser.add_argument("--top-k", type=whole(0), default=50, metavar="K", help=text)
    text = "sample from the fewest likely tokens whose probabilities add up to P; default: 1, from all"
    parser.add_argument("--top-p", type=_share, default=1.0, metavar="P", help=text)
    text = "seed of the sampling: another seed gives another text; default: 0"
    parser.add_argument("--seed", type=whole(0), default=0, metavar="S", help=text)


def choice_of(options: argparse.Namespace) -> Choice:
    """Return the choice of a checkpoint by the options of ``add_checkpoint`` and of ``add_weights``."""
    from holdfast.bootstrap.operations.named_checkpoint import Choice

    if "base" not in options:
        return Choice(options.step, options.best)
    return Choice(options.step, options.best, options.trained, base_of(options, [options.run]))


def base_of(options: argparse.Namespace, runs: Sequence[Path]) -> str | None:
    """Return the option ``--base``; raises ``ConfigurationError`` if none of ``runs`` has adapters."""
    from holdfast.bootstrap.operations.base_of_adapters import refuse_useless_base

    refuse_useless_base(runs, options.base)
    base: str | None = options.base
    return base


def whole(smallest: int, largest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers from ``smallest`` to ``largest``; others raise ``ValueError``."""

    def parse(text: str) -> int:
        """Return ``text`` as an integer within the bounds; raises ``ValueError`` for other text."""
        number = int(text)
        if not smallest <= number <= largest:
            raise ValueError
        return number

    parse.__name__ = f"whole number from {smallest} to {largest}"  # argparse prints it
    return parse


def temperature(text: str) -> float:
    """Return ``text`` as a temperature; raises ``ValueError`` if it is none."""
    number = float(text)
    if not 0.0 <= number < float("inf"):
        raise ValueError
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0.0 < number <= 1.0:
        raise ValueError
    return number


_share.__name__ = "share above 0, at most 1"  # argparse prints it


_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_EXAMPLE = re.compile(r"^  (?:python -m (?:application|holdfast)|holdfast|eval) .*?(?=  +#|$)", re.MULTILINE)
_HEADING = re.compile(r"^\S.*:$", re.MULTILINE)


class HelpFormat(argparse.RawDescriptionHelpFormatter):
    """Prints descriptions and examples as they are written; in color on a terminal, but for ``NO_COLOR``."""

    @override
    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and _styled(heading, _BOLD))

    @override
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text(text, width, indent)
        if not has_color():
            return filled
        return _EXAMPLE.sub(_colored(_CYAN), _HEADING.sub(_colored(_BOLD), filled))


def has_color() -> bool:
    """Return whether help is printed in color: on a terminal, unless ``NO_COLOR`` is set or the terminal is dumb.

    From Python 3.14 on, argparse colors by itself.
    """
    if sys.version_info >= (3, 14) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _styled(text: str, style: str) -> str:
    return f"{style}{text}{_PLAIN}" if has_color() else text


def _colored(style: str) -> str:
    return f"{style}\\g<0>{_PLAIN}"


def apply_start_options(options: argparse.Namespace, settings: TrainSettings, report: Callable[[str], object]) -> None:
    """Set the old run aside for ``--fresh``, and return to an earlier step for ``--from-step``."""
    if options.fresh:
        from holdfast.bootstrap.adapter_choice.state_stores import begin_afresh  # a supervisor stays small

        begin_afresh(settings, report)
    if options.from_step is not None:
        from holdfast.bootstrap.operations.named_checkpoint import return_to

        return_to(options.from_step, settings, report)


def resume_arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments of ``train`` that continue what these ``options`` began."""
    files = [argument for path in options.config for argument in ("--config", str(path))]
    accepted = ["--accept-changed-data"] if vars(options).get("accept_changed_data") else []
    output = [f"--{name}" for name in ("json", "quiet") if vars(options).get(name)]
    output += ["--log-format", "json"] if vars(options).get("log_format") == "json" else []
    study = vars(options).get("for_study")
    trial = [] if study is None else ["--for-study", str(study)]
    return ["train", *files, *accepted, *output, *trial, *options.settings]
