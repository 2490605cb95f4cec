"""What each command of the command line does."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.begin_run import again, begin_as_asked
from holdfast.bootstrap.cli.state_arguments import drill_numbers
from holdfast.bootstrap.cli.summary import Report
from holdfast.bootstrap.operations.named_checkpoint import Choice, folder_of
from holdfast.bootstrap.process.launch import launch_through_shortages, processes_to_start
from holdfast.bootstrap.process.launcher_watch import ending_with_launcher
from holdfast.bootstrap.process.library_environment import set_library_defaults
from holdfast.bootstrap.process.log_settings import configure_logging
from holdfast.bootstrap.process.printing import fitting, short
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals, write_at_once
from holdfast.bootstrap.run import build
from holdfast.bootstrap.wiring.first_micro_batch import FILE as SIZES
from holdfast.bootstrap.wiring.process_group import is_first_rank
from holdfast.bootstrap.wiring.state_stores import archived_steps
from holdfast.configs.rendering import render
from holdfast.configs.settings_catalog import describe_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.shipped_files import list_ready
from holdfast.domain.counting import counted
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from holdfast.bootstrap.verification.drill import Outcome
    from holdfast.bootstrap.verification.soak import SoakOutcome


def config(options: argparse.Namespace) -> int:
    """Print the resolved settings, or what can be set."""
    if options.list:
        print(list_ready())
    elif options.describe:
        print(describe_settings([setting.partition("=")[0] for setting in options.settings]))
    else:
        resolved = load_settings(options.config, options.settings, os.environ)
        print(render(resolved, only_changed=options.changed))
    return 0


def train(options: argparse.Namespace) -> int:
    """Train, or go on training, and show what came of it."""
    configure_logging()
    set_library_defaults()
    if not is_first_rank():
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  what there is to say is said once
    resolved = load_settings(options.config, options.settings, os.environ)
    settings = resolved.settings
    run, say = build(settings, accept_changed_data=options.accept_changed_data), partial(print, flush=True)
    begin = partial(begin_as_asked, options, settings, say)
    if (num_processes := processes_to_start(settings)) > 1:
        begin()
        say(f"training in {num_processes} processes on this machine")
        grace, sizes = settings.recovery.grace_seconds, run.directory / SIZES
        return launch_through_shortages(again(options), num_processes, sizes, say, grace_seconds=grace)
    for note in resolved.notes:
        say(fitting(note))
    run.may_exit, run.begin_with = True, begin
    report = Report(run)
    try:
        tell, grace = write_at_once if is_first_rank() else (lambda _: None), settings.recovery.grace_seconds
        hearing = stopping_on_signals(run.request_stop, acknowledge=tell, will_save=run.will_save)
        with hearing, ending_with_launcher(run.request_stop, grace):
            progress = run.run()
            if run.stopped_by is None or run.stopped_by.signal is None:
                report.show(progress)
                return 0
    except StoppedAtOnce as stop:
        told = f"{stop}: the same command continues from the newest checkpoint, if there is one"
        print(fitting(told, sys.stderr), file=sys.stderr)
        return 128 + stop.number
    where = run.newest_checkpoint()
    saved = f"at step {progress.step}, saved in {short(where)}" if where else "before there was anything to save"
    print(fitting(f"stopped {saved}; the same command continues"))
    return 128 + run.stopped_by.signal


def prepare(options: argparse.Namespace) -> int:
    """Tokenize the data of a run ahead, and show what came of it."""
    configure_logging()
    set_library_defaults()
    from holdfast.bootstrap.operations.prepare_data import prepare_ahead

    settings = load_settings(options.config, options.settings, os.environ).settings
    location, prepared, rejected = prepare_ahead(settings)
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
    print(f"try next:   {shlex.join([*called_as(), *again(options)])}")
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Print which checkpoints there are and whether they verify."""
    from holdfast.bootstrap.operations.inspect_run import inspect as look_into
    from holdfast.bootstrap.operations.trust import note_trust

    path = folder_of(options.path, Choice(options.step, options.best))
    copies = archived_steps(options.path) if options.archive else None
    text, is_sound = look_into(path, hashing=not options.quick, as_json=options.json, copies=copies)
    print(text)
    if not options.json and (note := note_trust(options.path)) is not None:
        print(note)
    return 0 if is_sound else 4


def explain(options: argparse.Namespace) -> int:
    """Print how a run stands, why it ended and what to try."""
    from holdfast.bootstrap.operations.explain import explain as tell

    print(tell(options.run))
    return 0


def pin(options: argparse.Namespace) -> int:
    """Keep a checkpoint from being deleted, or leave it to retention again."""
    from holdfast.adapters.shared.files.file_operations import FileOperations, explain
    from holdfast.adapters.state_store.store_folder import StoreFolder

    folder = StoreFolder(options.run, FileOperations())
    try:
        (folder.release if options.release else folder.pin)(options.step)
    except OSError as error:
        msg = f"the pins of {options.run} cannot be changed, {explain(error)}"
        raise StateError(msg) from error
    print(f"checkpoint {options.step} is {'left to state_store.keep' if options.release else 'kept until --release'}")
    return 0


def erase(options: argparse.Namespace) -> int:
    """Erase checkpoints of a run, or the tokens of an encrypted cache, for good, or tell which."""
    from holdfast.bootstrap.operations.erase_checkpoints import erase as erase_checkpoints
    from holdfast.bootstrap.operations.erase_tokens import erase_tokens, token_place_of

    place = token_place_of(options.path)
    if place is None:
        told = erase_checkpoints(options.path, options.steps, is_sure=options.yes, unencrypted=options.unencrypted)
    else:
        told = erase_tokens(place, options.steps, is_sure=options.yes, unencrypted=options.unencrypted)
    print("\n".join(told))
    return 0


def audit(options: argparse.Namespace) -> int:
    """Verify the audit of a run."""
    from holdfast.bootstrap.run_folder.run_audit import audit_run

    return audit_run(options.path, as_json=options.json, holding=options.holding)


def drill(options: argparse.Namespace) -> int:
    """Print whether a short run with these settings survives what befalls it."""
    from holdfast.bootstrap.verification.drill import Drills, applying
    from holdfast.bootstrap.verification.fault_catalog import DRILLS, SOAK
    from holdfast.bootstrap.verification.resume import ChildFailedError, VerifyResume
    from holdfast.bootstrap.verification.soak import Soak

    if options.drill == "list":
        print("\n".join(f"{name:12}{words}" for name, words in {**DRILLS, "soak": SOAK}.items()))
        return 0
    settings = load_settings(options.config, options.settings, os.environ).settings
    steps, faults, seed = drill_numbers(options)
    proof = VerifyResume(settings, options.config, options.settings, steps)
    names = applying(settings) if options.drill == "all" else [options.drill]
    has_survived = True
    try:
        outcomes: Iterator[Outcome | SoakOutcome]
        if options.drill == "soak":
            outcomes = iter([Soak(proof, faults, seed).run(keep=options.keep)])
        else:
            outcomes = Drills(proof).run(names, keep=options.keep)
        for outcome in outcomes:
            print(outcome.to_json() if options.json else outcome.line(), flush=True)
            has_survived = has_survived and outcome.survived
    except ChildFailedError as error:
        return error.code
    except StoppedAtOnce as stop:
        return 128 + stop.number
    return 0 if has_survived else 4


def verify_resume(options: argparse.Namespace) -> int:
    """Print whether a run with these settings resumes exactly."""
    from holdfast.bootstrap.verification.resume import ChildFailedError, VerifyResume

    settings = load_settings(options.config, options.settings, os.environ).settings
    proof = VerifyResume(settings, options.config, options.settings, options.steps)
    try:
        verdict = proof.run(keep=options.keep)
    except ChildFailedError as error:
        return error.code
    except StoppedAtOnce as stop:
        return 128 + stop.number
    print(verdict.to_json() if options.json else "\n".join(verdict.lines()))
    return 0 if verdict.holds else 4
