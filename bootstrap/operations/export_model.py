"""A trained model as a folder that other programs load."""

from __future__ import annotations

import shlex
from dataclasses import replace
from filecmp import cmp
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.committed_folder import draft_beside, move_draft
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.bootstrap.operations.base_of_adapters import with_base
from holdfast.bootstrap.operations.export_files import (
    ExportContent,
    Exported,
    LossComparison,
    check_tokenizer,
    is_export,
    read_network,
    require_packages,
    write_files,
)
from holdfast.bootstrap.operations.model_card import CARD, model_card
from holdfast.bootstrap.operations.named_checkpoint import NEWEST, place_of
from holdfast.bootstrap.operations.report_facts import name_of_run
from holdfast.bootstrap.operations.trained_model import open_trained
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.run_folder.found_paths import as_found
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.phase import show_nothing
from holdfast.domain.training.export_format import ExportFormat
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.bootstrap.operations.export_files import ExportOrder
    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.state_store import StatePart
    from holdfast.ports.tokenizer import Tokenizer

_NAMES_FOLDER = "adapter_config.json (base_model_name_or_path) names the base of these adapters, the folder"


def export(
    run: Path,
    folder: Path,
    order: ExportOrder,
    *,
    choice: Choice = NEWEST,
    trusted: Mapping[str, str] = MappingProxyType({}),
    show: ShowPhase = show_nothing,
) -> Exported:
    """Write the checkpoint of ``run`` that ``choice`` names, with its tokenizer, into ``folder`` in the form ``order``.

    A run with adapters gives only the adapters, in the format of PEFT, or with ``order.merged`` a complete model that
    needs no PEFT. ``folder`` must be new or empty, or already hold exactly the same files; it is written completely or
    not at all. ``trusted`` is as in ``open_trained``, and ``show`` gets the phases that take time. Raises
    ``ConfigurationError`` if the model has no such form or if ``folder`` holds other files, ``DataError`` if there are
    no documents to measure, and ``StateError`` if there is no checkpoint, the folder cannot be written, or the export
    is worse than ``order`` allows.
    """
    folder = folder.resolve()  # . and .. have no name of their own
    is_taken = _check_room(folder)
    require_packages(order)
    # on the CPU: a GPU may be too small for a mere copy
    trained = open_trained(run, device="cpu", choice=choice, trusted=trusted, show=show, data=order.data)
    model = _exportable(trained.model, run, order)
    comparison = LossComparison(trained, model, order, show) if order.is_checked else None
    record = _as_found(place_of(run, choice).path, choice)
    content = _content(model, trained.tokenizer, run, order, name=name_of_run(run, record))
    location = trained.location
    del trained, model  # the export is read back beside the weights alone
    try:
        with draft_beside(folder) as draft:
            exported = replace(_fill(draft, content, order, comparison, show), location=location, is_new=not is_taken)
            repeat = _command(run, folder, order, choice)
            card = model_card(record, order, exported, name=content.name, repeat=repeat)
            (draft / CARD).write_text(card, encoding="utf-8")
            _put(draft, folder, is_taken=is_taken)
    except OSError as error:
        msg = f"{folder} cannot be written, {explain(error)}"
        raise StateError(msg) from error
    return exported


def _content(
    model: CausalLanguageModel, tokenizer: Tokenizer, run: Path, order: ExportOrder, name: str
) -> ExportContent:
    """Return the content of the files; this changes ``model`` if ``order`` merges or prunes it."""
    from holdfast.adapters.shared.modeling.generation_settings import generation_ends

    base = _base_of_adapters(model, run, order)
    notes = [f"{_NAMES_FOLDER} {base}: write its new place there if the folder moves"] if base.startswith("/") else ()
    parts = _model_parts(model, order, base)
    return ExportContent(parts, tokenizer, name, generation_ends(model.network), notes)


def _as_found(path: Path, choice: Choice) -> Mapping[str, Any]:
    """Return the record of the run in ``path`` with the paths of its settings as they are found from here."""
    record = read_record(path)
    return {**record, "settings": as_found(with_base(record["settings"], choice.base), record, path)}


def _put(draft: Path, folder: Path, *, is_taken: bool) -> None:
    """Give ``draft`` its name, or raise ``ConfigurationError`` if ``folder`` is taken by something else."""
    if not is_taken:
        move_draft(draft, folder)
    elif not _are_alike(draft, folder):
        msg = f"{folder} already exists and holds something else: name a new folder, or an empty one"
        raise ConfigurationError(msg)


def _fill(
    draft: Path, content: ExportContent, order: ExportOrder, comparison: LossComparison | None, show: ShowPhase
) -> Exported:
    """Write the files into ``draft``, read them back and return the outcome."""
    show("writing the files")
    notes = [*write_files(content, order, draft), *content.notes]
    change, zeros = None, None
    if comparison is not None:
        show("reading the export back")
        network = read_network(content, order, draft)
        check_tokenizer(content, order, draft, comparison.texts())
        zeros = None if order.sparsity is None else _share_of_zeros(network)
        change = comparison.change(network)
        notes += [] if comparison.note is None else [comparison.note]
    show("")
    num_bytes = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    return Exported(change=change, zeros=zeros, notes=notes, num_bytes=num_bytes)


def _share_of_zeros(network: object) -> float:
    from holdfast.adapters.shared.model_export.pruning import pruned_share

    share = pruned_share(network)
    return share.num_zeros / share.num_weights


def _command(run: Path, folder: Path, order: ExportOrder, choice: Choice) -> str:
    """Return the command that exports the same again."""
    options = {
        "--step": choice.step,
        "--base": choice.base,
        "--format": order.format if order.format != ExportFormat() else None,
        "--sparsity": order.sparsity,
        "--max-loss-increase": order.max_loss_increase,
        "--license": order.license,
    }
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    flags = {"--best": choice.best, "--merged": order.merged, "--unchecked": not order.is_checked}
    given += [name for name, is_set in flags.items() if is_set]
    given += [word for path in order.data.paths for word in ("--data", path)]
    return shlex.join([*called_as(), "export", str(run), folder.name, *given, *order.data.settings])


def _check_room(folder: Path) -> bool:
    """Return whether ``folder`` may hold an export; raises ``ConfigurationError`` if it holds other files."""
    try:
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        may_be_export = is_taken and is_export(folder)
    except OSError as error:
        msg = f"{folder} cannot be read: {error.strerror}"
        raise StateError(msg) from error
    if is_taken and not may_be_export:
        msg = f"{folder} already exists: name a new folder, or an empty one"
        raise ConfigurationError(msg)
    return is_taken


def _are_alike(draft: Path, folder: Path) -> bool:
    """Return whether both folders hold the same files, byte for byte, and nothing else but a card of any text."""
    ours, theirs = (
        sorted(path.relative_to(place) for path in place.rglob("*") if path.relative_to(place) != Path(CARD))
        for place in (draft, folder)
    )
    if ours != theirs or any(not (folder / name).is_file() for name in ours if (draft / name).is_file()):
        return False
    return all(cmp(draft / name, folder / name, shallow=False) for name in ours if (draft / name).is_file())


def _exportable(model: object, run: Path, order: ExportOrder) -> CausalLanguageModel:
    """Return ``model``; raises ``ConfigurationError`` if it has no form as ``order`` demands."""
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel

    if not isinstance(model, CausalLanguageModel):
        msg = f"{run} trained a {type(model).__name__}, which has no form that transformers loads"
        raise ConfigurationError(msg)
    if order.merged and model.adapters is None:
        msg = f"{run} trained no adapters, so there is nothing to merge: leave out --merged"
        raise ConfigurationError(msg)
    if model.adapters is not None and not order.merged:
        if order.sparsity is not None or order.format != ExportFormat():
            what = f"--format {order.format}" if order.sparsity is None else "--sparsity"
            msg = f"{run} trained adapters, but {what} changes the weights that they adapt: add --merged"
            raise ConfigurationError(msg)
    else:
        _check_decoder(model)
    return model


def _model_parts(model: CausalLanguageModel, order: ExportOrder, base: str) -> Sequence[StatePart]:
    """Return the files of ``model``, merged and pruned as ``order`` demands, which changes it.

    ``base`` is that of ``_base_of_adapters``.
    """
    if base:
        return _adapter_parts(model, base)
    if order.merged:
        from holdfast.adapters.shared.modeling.lora import merge_lora

        merge_lora(model)
    if order.sparsity is not None:
        from holdfast.adapters.shared.model_export.pruning import prune_linear_layers

        prune_linear_layers(model.network, order.sparsity)
    return model.capture(copy=False)


def _base_of_adapters(model: CausalLanguageModel, run: Path, order: ExportOrder) -> str:
    """Return the base of adapters that are exported as such, its absolute folder or hub name; else an empty text.

    Raises ``ConfigurationError`` if no reader could put the adapters on their base.
    """
    from holdfast.adapters.shared.modeling.lora import LoraAdapters

    if model.adapters is None or order.merged:
        return ""
    assert isinstance(model.adapters, LoraAdapters)
    if model.adapters.base_path is None:
        msg = f"the base of {run}'s adapters was initialized from a seed, so no folder holds it: add --merged"
        raise ConfigurationError(msg)
    if _is_decoder(model) and model.network.config.model_type != "llama":
        msg = f"the names of {run}'s adapters are not those that its base has in transformers: add --merged"
        raise ConfigurationError(msg)
    base = expanded(model.adapters.base_path)
    return str(base.resolve()) if base.is_dir() else model.adapters.base_path


def _adapter_parts(model: CausalLanguageModel, base: str) -> Sequence[StatePart]:
    from holdfast.adapters.shared.modeling.generation_settings import generation_parts
    from holdfast.adapters.shared.modeling.lora import LoraAdapters

    assert isinstance(model.adapters, LoraAdapters)
    files = model.adapters.exported(model.adapters.tensors(model.network), base)
    return (*files, *generation_parts(model.network))


def _check_decoder(model: CausalLanguageModel) -> None:
    if _is_decoder(model):
        from holdfast.adapters.shared.decoder.huggingface_config import check_exportable

        check_exportable(model.network.config.shape)


def _is_decoder(model: CausalLanguageModel) -> bool:
    from holdfast.adapters.shared.decoder.network import DecoderNetwork

    return isinstance(model.network, DecoderNetwork)
