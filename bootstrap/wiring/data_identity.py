"""Holding a run to the data that it began with, wherever they lie."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from holdfast.bootstrap.run_folder.shared import in_turns
from holdfast.bootstrap.wiring.compatibility import check_tokenizer
from holdfast.bootstrap.wiring.data_growth_plan import changed_growth, divide_data, keep_growth, may_grow
from holdfast.bootstrap.wiring.dataset_registry import hashing_phase
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.verified_copy import VerifiedCopy, scratch_of
from holdfast.configs.sections.tokenizer import TrainTokenizerSettings
from holdfast.domain.data.data_files import DataFiles, difference, only_new
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.container import Container
    from holdfast.ports.state_store import OpenFile

_AT_ONCE_BYTES = 1 << 28  # of a stream that are hashed before it begins, in a tenth of a second; more as it is read
_FACT = "data"


def known_data(record: Mapping[str, Any]) -> DataFiles | None:
    """Return the data that the run of this ``run.json`` began with, None if it does not tell them file by file."""
    try:
        return DataFiles.from_json(record[_FACT])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def changed_data(record: Mapping[str, Any], container: Container) -> str | None:
    """Return how the data differ from those that the run of this ``run.json`` began with, as a clause."""
    fact = record["facts"].get(_FACT)
    if fact is None:
        return None
    if fact == container.data_fingerprint():
        return changed_growth(record, container)
    known = known_data(record)
    now = None if known is None else container.identified().identify(known)
    if known is None or now is None:
        return "a file has another name, size or time than then, and the run has not kept what each contained"
    return difference(known, now) or changed_growth(record, container)


def order_as_before(places: Mapping[str, Any], container: Container) -> None:
    """Let files of several places come in the order that they had where they lay when the run began."""
    container.places.override(providers.Object(places))


def check_data(folder: SharedRunFolder, container: Container, *, accepts_changes: bool) -> None:
    """Hold the run, and all its ranks, to the data that it began with, or record that they are others on purpose.

    Raises ``StateError`` naming the first file that differs.
    """
    divide_data(folder, None if folder.record is None else known_data(folder.record), container)
    if (record := folder.record) is not None and (clause := changed_data(record, container)) is not None:
        if not accepts_changes:
            or_grow = _or_grow(record, container)
            msg = (
                f"the data are not those that the run in {folder.path} began with: {clause}; put them back, {or_grow}"
                "give train the option --accept-changed-data to continue with them as they are, or start another run "
                "with --fresh or another run.name"
            )
            raise StateError(msg)
        folder.note_changed_data(clause)
        container.say()(f"the data are not those that the run began with, and it continues with them: {clause}")
    _check_ranks(folder, container)
    container.data_changes.override(providers.Object(folder.num_data_changes))


def _or_grow(record: Mapping[str, Any], container: Container) -> str:
    known, now = known_data(record), container.identified().files()
    can_grow = hasattr(container.settings().data, "grow") and container.mode() == "cache"
    if not can_grow or may_grow(container) or known is None or now is None or not only_new(known, now):
        return ""
    return "set data.grow=true to take the new files up from the next epoch on, "


def keep_tokenizer(folder: SharedRunFolder, container: Container) -> None:
    """Let a run that was given other data continue with the tokenizer that it has: its data would train another.

    A run without a checkpoint has learned nothing yet, and gets the tokenizer of the data as they are.
    """
    settings = container.settings()
    if not container.data_changes() or not isinstance(settings.tokenizer, TrainTokenizerSettings):
        return
    copies: list[VerifiedCopy] = []

    def take(checkpoint: Path, open_file: OpenFile) -> None:
        copies[:] = [VerifiedCopy(checkpoint, open_file, scratch_of(settings))]

    if container.state_store().restore(take).info is None:
        if (record := folder.record) is not None:
            record["facts"].pop("tokenizer", None)
        return
    made = lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load")
    backend, report = settings.tokenizer.backend, container.say()
    tokenizer = made(str(copies[0].folder / "tokenizer.json"), backend=backend, report=report)
    container.tokenizer.override(providers.Object(tokenizer))


def keep_data(folder: SharedRunFolder, container: Container) -> None:
    """Record what the data are, as far as that is known now that they are prepared."""
    if (record := folder.record) is None:
        return
    source, known = container.identified(), known_data(record)
    files = source.files() if known is None else source.identify(known)
    if files is not None and (container.mode() == "cache" or files.num_unknown_bytes <= _AT_ONCE_BYTES):
        if files.num_unknown_bytes:
            container.show()(hashing_phase(files.num_unknown_bytes))
        files = source.identify()
    keep_growth(record, container)
    record["facts"][_FACT] = container.data_fingerprint()
    if files is None:
        return
    record[_FACT] = files.to_json()
    if files.num_unknown_bytes:

        def refresh() -> None:
            record[_FACT] = source.files().to_json()

        folder.refresh_at_saves(refresh)


def _check_ranks(folder: SharedRunFolder, container: Container) -> None:
    sources = [container.identified(), *container.added()]
    fingerprints = json.dumps([source.fingerprint() for source in sources])
    if len(set(folder.gather(fingerprints))) == 1:
        return
    parts = [source.identify() for source in sources]  # they lie elsewhere or were copied, so contents must tell
    known = [[part.shape, [file.content for file in part.files]] for part in parts if part is not None]
    told = json.dumps(known) if len(known) == len(parts) else fingerprints
    everyones = folder.gather(told)
    if strangers := [rank for rank, theirs in enumerate(everyones) if theirs != everyones[0]]:
        msg = f"the data of rank {strangers[0]} are not those of rank 0: give all processes the same"
        raise StateError(msg)


def give_record(folder: SharedRunFolder, container: Container) -> None:
    """Have checkpoints hold ``run.json``, and files of several places come in the order that the run began with."""
    container.record.override(providers.List(providers.Object(folder.part)))
    known = None if folder.record is None else known_data(folder.record)
    order_as_before(json.loads(folder.gather(json.dumps(known.first_places if known else {}))[0]), container)


def check_identity(folder: SharedRunFolder, container: Container, *, accepts_changes: bool = False) -> None:
    """Hold a run to the data, transforms and tokenizer that it began with; raises ``StateError`` if one is another."""
    remedy = "put it back, or start another run with --fresh or another run.name"
    show = container.show()
    show("looking at the data")
    check_data(folder, container, accepts_changes=accepts_changes)
    transforms = json.dumps([transform.fingerprint() for transform in container.transforms()])
    folder.hold_to("list of transforms", transforms, f"one has another version or another Python; {remedy}")
    show("preparing the tokenizer")
    keep_tokenizer(folder, container)
    tokenizer = in_turns(container.process_group(), container.tokenizer)
    check_tokenizer(container, is_new=not folder.knows("tokenizer"))
    folder.hold_to("tokenizer", tokenizer.fingerprint(), remedy)


def prepare_data(folder: SharedRunFolder, container: Container) -> None:
    """Make what the batches come from, and record what the data are."""
    in_turns(container.process_group(), container.batch_stream)
    keep_data(folder, container)
