"""What the commands that use a trained model do."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from holdfast.bootstrap.operations.named_checkpoint import Choice, place_of
from holdfast.bootstrap.operations.other_data import OtherData
from holdfast.bootstrap.operations.trust import stated_trust
from holdfast.bootstrap.process.library_environment import set_library_defaults
from holdfast.bootstrap.process.log_settings import configure_logging
from holdfast.bootstrap.run_folder.run_audit import record_use
from holdfast.bootstrap.wiring.screen import phases_shown
from holdfast.domain.training.text_generation import Sampling

if TYPE_CHECKING:
    import argparse


def generate(options: argparse.Namespace) -> int:
    """Print a continued prompt."""
    configure_logging()
    set_library_defaults()
    from holdfast.bootstrap.operations.trained_model import open_trained

    sampling = Sampling(options.max_new_tokens, options.temperature, options.top_k, seed=options.seed)
    with phases_shown() as show:
        trained = open_trained(options.run, choice=_choice(options), trusted=stated_trust(options), show=show)
    record_use(place_of(options.run, _choice(options)).path, "TextGenerated", {"location": trained.location})
    trained.stream(options.prompt, sampling, partial(print, end="", flush=True), partial(print, file=sys.stderr))
    print()
    return 0


def export(options: argparse.Namespace) -> int:
    """Write a trained model as a folder of Hugging Face."""
    configure_logging()
    set_library_defaults()
    from holdfast.bootstrap.operations.export_model import export as write_model

    run, to = place_of(options.run, _choice(options)).path.absolute(), options.folder.absolute()
    location, is_new = write_model(
        options.run, options.folder, merged=options.merged, choice=_choice(options), trusted=stated_trust(options)
    )
    # by absolute paths: the folder that takes the place of an empty one may be that of this process
    record_use(run, "CheckpointExported", {"location": location, "to": str(to)})
    print(f"{location} is in {options.folder}{'' if is_new else ' already'}, as transformers loads it")
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Print a trained model's figures on its held-out documents, or on other data."""
    configure_logging()
    set_library_defaults()
    from holdfast.bootstrap.operations.trained_model import open_trained

    data, trusted = OtherData(options.data, options.settings), stated_trust(options)
    with phases_shown() as show:
        trained = open_trained(options.run, choice=_choice(options), trusted=trusted, show=show, data=data)
        evaluation = trained.evaluate()
    print(
        f"{trained.location} · {evaluation.bits_per_byte:.4f} bits per byte · {evaluation.loss:.4f} nats/token · "
        f"{evaluation.num_targets:,} tokens, {evaluation.num_bytes:,} bytes"
    )
    if data.is_named and trained.is_cut:
        text = "these are the first tokens of the data, not all: evaluation.max_tokens=N measures more"
        print(text, file=sys.stderr)
    return 0


def _choice(options: argparse.Namespace) -> Choice:
    return Choice(options.step, options.best)
