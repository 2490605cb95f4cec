"""The code that the settings of a run folder ask the user to trust, and the code that the user trusts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.bootstrap.run_folder.found_paths import settings_as_found
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.stages.attach.suite_process import asked_trust, trust_of_suites
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.configs.settings import TrainSettings


def stated_trust(options: argparse.Namespace) -> Mapping[str, str]:
    """Return the settings that the user of a command trusts: by ``--trust``, and in their own files by ``--config``."""
    own: dict[str, str] = {}
    if options.config:
        settings = load_settings(options.config, [], {}).settings
        own = {**asked_trust(settings), **trust_of_suites(settings)}
    given = {key: value for key, _, value in (each.partition("=") for each in options.trust)}
    return {**own, **given}


def refuse_untrusted(run: Path, settings: TrainSettings, trusted: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` unless ``trusted`` repeats all settings of the folder ``run`` that need trust."""
    if missing := {key: value for key, value in asked_trust(settings).items() if trusted.get(key) != value}:
        raise ConfigurationError(_sentence(run, missing))


def note_trust(run: Path) -> str | None:
    """Return a sentence on the code that ``run`` asks to trust, None if there is none or its record is unreadable."""
    try:
        asked = asked_trust(settings_as_found(read_record(run), run))
    except TrainingError:
        return None
    return _sentence(run, asked) if asked else None


def _sentence(run: Path, asked: Mapping[str, str]) -> str:
    pairs = [f"{key}={value}" for key, value in asked.items()]
    options = " ".join(f"--trust {shlex.quote(each)}" for each in pairs)
    return (
        f"the settings in {run} ask for {', '.join(pairs)}, which runs code that is not Holdfast's (an entry point of "
        "another package, or code or a pickle beside the base model): to allow it "
        f"add {options}, or name a file of yours that has it by --config"
    )
