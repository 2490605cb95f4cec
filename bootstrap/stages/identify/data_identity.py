"""Checks that a run continues with the data that it began with, wherever they are stored."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.tensor_state.file_parts import read_whole
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.run_folder.record_file import Begun
from holdfast.bootstrap.stages.choose.former_settings import check_tokenizer
from holdfast.bootstrap.stages.identify.data_form import hashing_phase
from holdfast.bootstrap.stages.identify.data_growth import changed_growth, divide_data, keep_growth, may_grow
from holdfast.bootstrap.stages.identify.document_encoder import is_masked
from holdfast.bootstrap.stages.identify.hold_out import HOLDOUT, record_holdout, told_holdout
from holdfast.configs.sections.data import FilesDataSettings
from holdfast.configs.sections.tokenizer import TrainTokenizerSettings
from holdfast.domain.data.data_files import DataFiles, difference, only_new
from holdfast.domain.errors import StateError
from holdfast.domain.fault_tolerance.remedies import ACCEPT_CHANGED_DATA, FRESH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.record_pipeline import RecordPipeline
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.identify.data import Data, Found, Identified, RunData
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.model_factory import ModelFactory
    from holdfast.ports.state_store import OpenFile, StateStore
    from holdfast.ports.tokenizer import Tokenizer

_AT_ONCE_BYTES = 1 << 28  # of a stream that are hashed before it begins, in a tenth of a second; more as it is read
_FACT = "data"
_REMEDY = f"put it back, or start another run with another run.name or {FRESH}"


def known_data(record: Mapping[str, Any]) -> DataFiles | None:
    """Return the data that the run of ``record`` (``run.json``) began with, None if it does not list their files."""
    try:
        return DataFiles.from_json(record[_FACT])
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def changed_data(record: Mapping[str, Any], data: RunData) -> str | None:
    """Return, as a clause, how the data differ from those that the run of ``record`` began with, else None."""
    fact = record["facts"].get(_FACT)
    if fact is None:
        return None
    if fact == data.identified.fingerprint():
        return changed_growth(record, data.added)
    known = known_data(record)
    now = data.identified.files() if known is None else data.identified.identify(known)
    if now is None:
        return "the fingerprint of their source is another one, which says that some document has changed"
    if known is None:
        return "a file has another name, size or time than before, and the run has no record of their contents"
    return difference(known, now) or changed_growth(record, data.added)


def check_data(folder: SharedRunFolder, found: Found, store: StateStore, *, accepts_changes: bool) -> RunData:
    """Return the data of the run, the same on all ranks, after checking that the run began with them.

    With ``accepts_changes`` other data are recorded. Otherwise raises ``StateError`` for them, which names the first
    file that differs.
    """
    data = divide_data(folder, None if folder.record is None else known_data(folder.record), found, store)
    if (record := folder.record) is not None and (clause := changed_data(record, data)) is not None:
        if not accepts_changes:
            or_grow = _or_grow(record, data.identified, found)
            msg = (
                f"the data are not those that the run in {folder.path} began with: {clause}; put them back, {or_grow}"
                f"continue with them as they are by train {ACCEPT_CHANGED_DATA}, or start another run "
                f"with another run.name or {FRESH}"
            )
            raise StateError(msg)
        folder.note_changed_data(clause)
        found.report(f"the data are not those that the run began with, and it continues with them: {clause}")
        if HOLDOUT in record:
            found.report(
                f"{told_holdout(record[HOLDOUT])}, and trains on all others, also if they resemble one of them"
            )
        if found.mode == "stream":
            found.report("the files are dealt anew: some documents may come twice in this epoch, or not at all")
    _check_ranks(folder, data)
    return data


def _or_grow(record: Mapping[str, Any], identified: Identified, found: Found) -> str:
    known, now = known_data(record), identified.files()
    can_grow = isinstance(found.settings.data, FilesDataSettings) and found.mode == "cache"
    if not can_grow or may_grow(found.settings, found.mode) or known is None or now is None or not only_new(known, now):
        return ""
    return "set data.grow=true to add the new files from the next epoch on, "


def former_tokenizer(folder: SharedRunFolder, found: Found, store: StateStore) -> Tokenizer | None:
    """Return the former tokenizer for a run with changed data, as the new data would train another one.

    None if the tokenizer in the settings is right: no data changed, or it is not trained on data, or there is no
    checkpoint, so that nothing has been learned with the former tokenizer.
    """
    settings = found.settings
    if not folder.num_data_changes or not isinstance(settings.tokenizer, TrainTokenizerSettings):
        return None
    tokenizer = kept_tokenizer(settings, store, found.report)
    if tokenizer is None and (record := folder.record) is not None:
        record["facts"].pop("tokenizer", None)
    return tokenizer


def kept_tokenizer(settings: TrainSettings, store: StateStore, report: Callable[[str], object]) -> Tokenizer | None:
    """Return the tokenizer in the newest checkpoint of ``store``, None if there is no checkpoint."""
    copies: list[VerifiedCopy] = []

    def take(checkpoint: Path, open_file: OpenFile) -> None:
        copies[:] = [VerifiedCopy(checkpoint, open_file, scratch_of(settings))]

    if store.restore(take).info is None:
        return None
    made = lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load")
    path, backend = copies[0].folder / "tokenizer.json", dict(settings.tokenizer)["backend"]
    tokenizer: Tokenizer = made(str(path), backend=backend, report=report)
    return tokenizer


def _check_ranks(folder: SharedRunFolder, data: RunData) -> None:
    sources: list[Identified] = [data.identified, *data.added]
    fingerprints = json.dumps([source.fingerprint() for source in sources])
    if len(set(folder.gather(fingerprints))) == 1:
        return
    parts = [source.identify() for source in sources]  # they lie elsewhere or were copied, so contents must tell
    known = [[part.shape, [file.content for file in part.files]] for part in parts if part is not None]
    identity = json.dumps(known) if len(known) == len(parts) else fingerprints
    everyones = folder.gather(identity)
    if strangers := [rank for rank, theirs in enumerate(everyones) if theirs != everyones[0]]:
        msg = f"the data of rank {strangers[0]} are not those of rank 0: give all processes the same"
        raise StateError(msg)


def begun_with(record: Mapping[str, Any], rules: Mapping[str, int]) -> Begun:
    """Return what the run of ``record`` began with, by ``rules``: places of files, what was held out, and choices.

    Files of several places are read in the order of the paths that they had.
    """
    known = known_data(record)
    choices = {name: str(entry["value"]) for name, entry in record.get("auto", {}).items()}
    return Begun(rules, known.first_places if known else {}, record.get(HOLDOUT, {}), choices)


def begun_with_data(folder: SharedRunFolder) -> Begun:
    """Return what ``begun_with`` does, on all ranks."""
    begun = begun_with(folder.record or {}, {})
    own = json.dumps([dict(begun.places), dict(begun.holdout), dict(begun.choices)])
    places, holdout, choices = json.loads(folder.gather(own)[0])
    return Begun(folder.rules(), places, holdout, choices)


def hold_to_transforms(folder: SharedRunFolder, pipeline: RecordPipeline) -> None:
    """Raise ``StateError`` if the run began with another validation or other transforms."""
    transforms = json.dumps(pipeline.fingerprints)
    folder.hold_to("list of transforms", transforms, f"one has another version or another Python; {_REMEDY}")


def hold_to_tokenizer(
    folder: SharedRunFolder,
    tokenizer: Tokenizer,
    factory: ModelFactory[object],
    settings: TrainSettings,
    *,
    replaces_tokenizer: bool,
) -> None:
    """Raise ``StateError`` if the run began with another tokenizer, ``ConfigurationError`` if the model has another."""
    is_new = not folder.knows("tokenizer")
    check_tokenizer(tokenizer, factory, settings, is_new=is_new, replaces_tokenizer=replaces_tokenizer)
    folder.hold_to("tokenizer", tokenizer.fingerprint(), _REMEDY)


def hold_to_encoder(folder: SharedRunFolder, encoder: DocumentEncoder) -> None:
    """Raise ``StateError`` if the run began with another chat template, or other rules for what is trained on."""
    if is_masked(encoder):
        remedy = (
            "the chat template or another setting of data.chat has changed: put it back; or they are the same, and "
            "another version of Holdfast trains on other parts: use the one of the run, which its events.jsonl names; "
            f"or start another run with another run.name or {FRESH}"
        )
        folder.hold_to("encoding of conversations", encoder.fingerprint(), remedy)


def record_data(folder: SharedRunFolder, identified: Data, stream: BatchStream) -> None:
    """Record the data, their growth and what is held out of them, as far as they are known once ``stream`` exists."""
    data, found, holdout = identified.run, identified.found, identified.holdout
    if (record := folder.record) is None:
        return
    record_holdout(record, holdout, found.settings)
    source, known = data.identified, known_data(record)
    files = source.files() if known is None else source.identify(known)
    if files is not None and (found.mode == "cache" or files.num_unknown_bytes <= _AT_ONCE_BYTES):
        if files.num_unknown_bytes:
            found.show(hashing_phase(files.num_unknown_bytes))
        files = source.identify()
    keep_growth(record, data.added, stream, found.mixture, found.report)
    record["facts"][_FACT] = source.fingerprint()
    if files is None:
        return
    record[_FACT] = files.to_json()
    if files.num_unknown_bytes:

        def refresh() -> None:
            if (read := source.files()) is not None:
                record[_FACT] = read.to_json()

        folder.refresh_at_saves(refresh)


_TENSORS = ".safetensors"


@final
class VerifiedCopy:
    """A temporary copy of a checkpoint's files except the tensors, such as descriptions and tokenizer.

    A library that opens a file by its name does not hash the bytes that it reads. The bytes in this copy were verified
    when they were read from the checkpoint. ``scratch``, if given, is a file system in memory. The copy is deleted with
    this object. Raises ``StateError`` if it cannot be written.
    """

    def __init__(self, checkpoint: Path, open_file: OpenFile, scratch: Path | None) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=scratch))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            for path in checkpoint.rglob("*"):
                if path.suffix != _TENSORS and path.is_file():
                    target = self.folder / path.relative_to(checkpoint)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(read_whole(path, open_file))
        except OSError as error:
            msg = f"the description of the model in {checkpoint} cannot be copied to {scratch}, {explain(error)}"
            raise StateError(msg) from error


def scratch_of(settings: TrainSettings) -> Path | None:
    """Return the folder that may hold decrypted files for a short time, None for any folder."""
    encryption = settings.state_store.encryption
    return None if encryption is None else encryption.scratch
