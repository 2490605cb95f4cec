"""The options of `train` that act before the run starts, and the command that continues it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from holdfast.configs.settings import TrainSettings


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
