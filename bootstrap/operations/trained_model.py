"""Opens a trained model from its run folder without disturbing a run that may still write there."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.tensor_state.file_parts import AVERAGE_FILE, MODEL_FILE
from holdfast.adapters.state_store.shown_transfer import ShownStateStore
from holdfast.application.inbox import Inbox
from holdfast.application.training.generate import chat_prompt, generate, stream_reply, stream_text
from holdfast.bootstrap.adapter_choice.encryption_keys import own_roles
from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.operations.base_of_adapters import naming_base, with_base
from holdfast.bootstrap.operations.named_checkpoint import NEWEST, place_of, restore, restore_alone
from holdfast.bootstrap.operations.other_data import OtherData
from holdfast.bootstrap.operations.trust import refuse_untrusted
from holdfast.bootstrap.run_folder.found_paths import as_found
from holdfast.bootstrap.run_folder.layout import RECORD
from holdfast.bootstrap.run_folder.record_file import UNSEALED, read_record, rules_of, unlike_members
from holdfast.bootstrap.stages.build.model import network_of
from holdfast.bootstrap.stages.build.reference_model import known_reference
from holdfast.bootstrap.stages.build.stage import bare_model, open_evaluation, wrap_model
from holdfast.bootstrap.stages.choose.stage import choose, choose_sizes
from holdfast.bootstrap.stages.identify.data_growth import leave_added_out
from holdfast.bootstrap.stages.identify.data_identity import (
    VerifiedCopy,
    begun_with,
    changed_data,
    known_data,
    scratch_of,
)
from holdfast.bootstrap.stages.identify.document_encoder import template_in_use
from holdfast.bootstrap.stages.identify.stage import find_data, identify, open_tokenizer
from holdfast.bootstrap.stages.open_run.stage import open_run
from holdfast.bootstrap.stages.prepare.stage import open_readers
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.rendering import dump_settings
from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.configs.sections.tokenizer import FORMER_VALUES
from holdfast.configs.settings_layers import restore_settings
from holdfast.domain.data.data_files import LATEST_RULES
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import DataError, StateError
from holdfast.domain.phase import show_nothing
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.bootstrap.stages.build.built import Built, EvaluationParts
    from holdfast.bootstrap.stages.choose.stage import Chosen
    from holdfast.bootstrap.stages.identify.data import RunData
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.step_outcome import Evaluation
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.state_store import OpenFile, StateFile, StateStore
    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer


@final
class Trained:
    """A checkpoint of a run, ready for use; ``copy`` holds the files that its parts may still read.

    ``is_averaged`` says that the model has the average of the weights (``optimizer.ema``). ``remarks`` on the data are
    complete once they are opened for an evaluation.
    """

    def __init__(
        self,
        parts: Built,
        tokenizer: Tokenizer,
        open_evaluation: Callable[[], EvaluationParts],
        copy: VerifiedCopy,
        location: str,
        *,
        is_averaged: bool = False,
        remarks: Sequence[str] = (),
    ) -> None:
        self._remarks = remarks
        self._parts = parts
        self._open_evaluation = open_evaluation
        self._copy = copy
        self.tokenizer = tokenizer
        self.location = location
        self.is_averaged = is_averaged

    @property
    def model(self) -> object:
        """Return the model itself, in the form that its optimizer holds."""
        return self._parts.model

    @property
    def trainable(self) -> Trainable:
        """Return the model as its optimizer wraps it."""
        return self._parts.trainable

    def generate(self, prompt: str, sampling: Sampling) -> str:
        """Return ``prompt`` and its continuation."""
        return generate(self._parts.trainable, self.tokenizer, prompt, sampling)

    def stream(
        self, prompt: str, sampling: Sampling, show: Callable[[str], object], note: Callable[[str], object]
    ) -> None:
        """Pass ``prompt`` and its continuation to ``show``, piece by piece; ``note`` gets a sentence if it is cut."""
        self._note_settings(sampling, note)
        stream_text(self._parts.trainable, self.tokenizer, prompt, sampling, show, note=note)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """Return the chat template of a run on conversations, None for other runs."""
        return template_in_use(self._parts.settings.data, self.tokenizer)

    def reply(
        self, text: str, sampling: Sampling, show: Callable[[str], object], note: Callable[[str], object]
    ) -> None:
        """Pass the reply to ``text``, a message of the user, to ``show``, piece by piece; ``note`` is as in ``stream``.

        Only for a run on conversations.
        """
        assert self.chat_template is not None, "the run has no chat template"
        self._note_settings(sampling, note)
        messages = [ChatMessage(MessageRole.USER, text)]
        prompt = chat_prompt(self._parts.trainable, self.chat_template, messages, sampling)
        if prompt.note is not None:
            note(prompt.note)
        stream_reply(self._parts.trainable, self.tokenizer, prompt, lambda _, piece: show(piece))

    def _note_settings(self, sampling: Sampling, note: Callable[[str], object]) -> None:
        """Pass a sentence to ``note`` if samples also obey settings that came with the model."""
        from holdfast.adapters.shared.modeling.generation_settings import sample_settings

        defaults = sample_settings(network_of(self._parts.model)) if sampling.temperature > 0 else {}
        if defaults:
            named = ", ".join(f"{name}={value}" for name, value in defaults.items())
            note(f"samples also obey the model's generation_config.json ({named}), but not at temperature 0")

    @property
    def has_documents(self) -> bool:
        """Return whether there are documents to evaluate on."""
        return self._evaluation.evaluator.has_documents

    @property
    def notes(self) -> Sequence[str]:
        """Return the sentences on rows without a target that ``evaluate`` has found, on files and on bits per byte."""
        return [*self._remarks, *filter(None, self._evaluation.evaluator.notes.values())]

    @property
    def is_cut(self) -> bool:
        """Return whether ``evaluate`` left out documents after the first ``evaluation.max_tokens``."""
        return self._evaluation.held_out.is_cut

    def held_out_batches(self) -> Sequence[Batch]:
        """Return the packed documents that ``evaluate`` measures; raises ``StateError`` if the data have changed."""
        return self._evaluation.held_out.batches

    def measured_batches(self) -> Sequence[Batch]:
        """Return the packed documents whose loss is the total of ``evaluate``, none if no documents are held out.

        Raises ``StateError`` if the data have changed, and ``DataError`` if they cannot be read.
        """
        return [batch for documents in self._evaluation.evaluator.measured for batch in documents.batches]

    @cached_property
    def _evaluation(self) -> EvaluationParts:
        return self._open_evaluation()

    def evaluate(self) -> Evaluation:
        """Measure the model on the documents that its run held out and its sets, or on all documents of other data.

        Raises ``DataError`` if there are no documents or no targets, ``StateError`` if the data have changed.
        """
        evaluator = self._evaluation.evaluator
        if not evaluator.has_documents:
            self.held_out_batches()  # raises
        evaluation = evaluator.run()
        if evaluation is None:  # nobody asks it to stop
            msg = "no document to evaluate on holds a token that the model is to predict: name others with --data FILE"
            raise DataError(msg)
        return evaluation


def open_trained(
    path: Path,
    *,
    device: str = "auto",
    choice: Choice = NEWEST,
    trusted: Mapping[str, str] = MappingProxyType({}),
    show: ShowPhase = show_nothing,
    data: OtherData = OtherData(),  # noqa: B008  a value
) -> Trained:
    """Return the checkpoint that ``choice`` selects in the run folder ``path``, or the checkpoint in ``path`` itself.

    The model gets the average of the weights if there is one, unless ``choice`` leaves it out, and is evaluated on
    ``data``, or what its run held out. Code that the folder names runs only if ``trusted`` repeats its setting and
    value. Raises ``StateError`` if no checkpoint verifies, ``ConfigurationError`` for other code or two choices.
    """
    show("opening the checkpoint")
    record = read_record((place := place_of(path, choice)).path)
    settings = as_begun(place.path, record, device, trusted, data, base=choice.base)
    record = {**record, "facts": {}} if data.is_named else record  # facts are those of the run's own data
    begun = begun_with(record, rules_of(record) | ({"files": LATEST_RULES} if data.is_named else {}))
    opened: list[tuple[_BuiltModel, VerifiedCopy, bool]] = []

    def take_over(folder: Path, open_file: OpenFile) -> None:
        opened.clear()
        copy = _compared(record, VerifiedCopy(folder, open_file, scratch_of(settings)), folder)
        own = _on_checkpoint(settings, copy.folder)
        request = Request(own, place.path, Ports(own, _parts(own)), _report_nothing, show, begun)
        with naming_base(dump_settings(own), path):
            model = _BuiltModel.of(request, record)
        opened.append((model, copy, uses_average(folder, choice)))
        model.built.trainable.restore(folder, weights_only=True, open_file=opening_weights(folder, open_file, choice))

    store = None if place.is_alone else _store_of(place.path, settings, show)
    info = restore_alone(path, take_over) if store is None else restore(store, place, take_over)
    [(model, copy, is_averaged)] = opened
    remarks: list[str] = []
    as_it_began = partial(_data_as_begun, record, settings, info.location, remarks)
    evaluation = partial(model.evaluation, as_it_began, Holdout(1.0, settings.run.seed) if data.is_named else None)
    return model.trained(evaluation, copy, info.location, is_averaged=is_averaged, remarks=remarks)


@final
@dataclass(frozen=True, slots=True)
class _BuiltModel:
    """A model as the stages build it, with its tokenizer."""

    chosen: Chosen
    tokenizer: Tokenizer
    built: Built

    @classmethod
    def of(cls, request: Request, record: Mapping[str, Any]) -> _BuiltModel:
        """Build the model of ``request``, those of a run with this ``record``."""
        chosen, tokenizer = choose(request, SingleProcessGroup()), open_tokenizer(request)
        optimizer = request.ports.optimizer(chosen.torch)
        model = bare_model(chosen, tokenizer, optimizer)
        return cls(chosen, tokenizer, wrap_model(chosen, optimizer, model, known_reference(record)))

    def trained(
        self,
        evaluation: Callable[[], EvaluationParts],
        copy: VerifiedCopy,
        location: str,
        *,
        is_averaged: bool,
        remarks: Sequence[str],
    ) -> Trained:
        """Return the model for use; the arguments are those of ``Trained``."""
        return Trained(self.built, self.tokenizer, evaluation, copy, location, is_averaged=is_averaged, remarks=remarks)

    def evaluation(self, as_it_began: Callable[[RunData], RunData], holdout: Holdout | None) -> EvaluationParts:
        """Return what measures the model on its data ``as_it_began``; ``holdout`` as in ``identify``."""
        found = find_data(self.chosen.request)
        data = identify(found, as_it_began(found.data), tokenizer=self.tokenizer, holdout=holdout)
        readers = open_readers(data)
        return open_evaluation(self.chosen, self.built, readers, readers.tokens)


def _compared(record: Mapping[str, Any], copy: VerifiedCopy, folder: Path) -> VerifiedCopy:
    """Return ``copy``, that of ``folder``, if it holds the same ``record`` or that has a hash.

    What the history of the run names may have changed since. Raises ``StateError`` if something else differs.
    """
    if record["schema"] != UNSEALED or not (copy.folder / RECORD).is_file():
        return copy
    if unlike := unlike_members(read_record(copy.folder), record):
        which = f"{unlike[0]} in {RECORD} is not what {folder} holds, and no change of it is recorded"
        msg = f"{which}: put back {folder / RECORD}"
        raise StateError(msg)
    return copy


def open_store(
    run: Path, *, trusted: Mapping[str, str] = MappingProxyType({}), show: ShowPhase = show_nothing
) -> tuple[StateStore, bool]:
    """Return the store of the checkpoints of ``run``, to read only, and whether it encrypts them.

    ``trusted`` and ``show`` are as in ``open_trained``.
    """
    settings = as_begun(run, read_record(run), "cpu", trusted, OtherData())
    return _store_of(run, settings, show), settings.state_store.encryption is not None


def _store_of(run: Path, settings: TrainSettings, show: ShowPhase) -> StateStore:
    request = Request(settings, run, Ports(settings, {}), _report_nothing)
    return ShownStateStore(open_run(request, SingleProcessGroup(), Inbox()).state_store, show)


def _data_as_begun(
    record: Mapping[str, Any], settings: TrainSettings, location: str, remarks: list[str], found: RunData
) -> RunData:
    """Return the data that the run began with; raises ``StateError`` if they have changed.

    ``remarks`` get a sentence for each kind of file of other data that is not read.
    """
    if not record["facts"]:  # the remarks on the run's own data were shown when it began
        remarks += [remark.sentence for remark in found.source.remarks() if remark.unused]
    known = known_data(record)
    data = leave_added_out(record, known, found, settings) if known is not None and record["facts"] else found
    if (clause := changed_data(record, data)) is not None:
        msg = f"the data have changed since {location} was trained: {clause}; put them back to evaluate it"
        raise StateError(msg)
    return data


def _parts(settings: TrainSettings) -> Mapping[str, object]:
    """Return a wrapper of the model factory that leaves out the weights, unless those of a base are to be read."""
    return {"model_factory": Around(_awaiting_weights)} if settings.model.lora is None else {}


def as_begun(
    path: Path,
    record: Mapping[str, Any],
    device: str,
    trusted: Mapping[str, str],
    data: OtherData,
    *,
    base: str | None = None,
) -> TrainSettings:
    """Return the settings in ``record`` of the run in ``path``, on ``device``.

    Relative paths in them are found from any folder. ``data`` replaces the data of the run if it names any, and
    ``base`` the model that its adapters belong to.
    """
    kept = dump_settings(restore_settings(record["settings"]))
    found = restore_settings(as_found(with_base(kept, base), record, path))
    recorded = _on_any_device(found, device)
    refuse_untrusted(path, recorded, trusted)
    named = data.within(recorded)
    request = Request(named, path, Ports(named, {}), _report_nothing, begun=begun_with(record, {}))
    return choose_sizes(request).settings


def _awaiting_weights(factory: Any) -> Any:
    """Make ``factory`` leave out the weights, as all of them are restored after it has built the model."""
    factory.await_weights()
    return factory


def _on_any_device(settings: TrainSettings, device: str) -> TrainSettings:
    """Change ``settings`` so that the model works on another machine than the one that trained it."""
    tree = dump_settings(settings)
    tree["distributed"] = {"kind": "single"}
    if tree["state_store"]["kind"] == "disk":
        tree["state_store"]["roles"] = list(own_roles(os.environ))  # of who asks, not of who trained
    if tree["state_store"].get("archive") is not None:
        tree["state_store"] |= {"archive": None, "disk_budget": None}  # who only looks writes no copies
    if isinstance(settings.optimizer, TorchOptimizerSettings):
        common = {name: tree["optimizer"][name] for name in TorchOptimizerSettings.model_fields}
        precision = "bf16" if settings.optimizer.precision == "fp8" else settings.optimizer.precision
        tree["optimizer"] = {**common, "kind": "accelerate", "device": device, "precision": precision, "ema": None}
    return restore_settings(tree)


def _on_checkpoint(settings: TrainSettings, folder: Path) -> TrainSettings:
    """Take tokenizer and model from the checkpoint itself, as their original sources may no longer exist."""
    tree = dump_settings(settings)
    if settings.model.lora is not None:
        # the checkpoint holds only adapters: their base model is built as in the run, except for training-only settings
        tree["model"]["gradient_checkpointing"] = "none"
    elif isinstance(settings.model, HuggingFaceModelSettings):
        tree["model"] = {"kind": "huggingface", "path": str(folder), "attention": settings.model.attention}
    elif isinstance(settings.model, DecoderModelSettings):
        tree["model"] = {"kind": "decoder", "path": str(folder), "attention": settings.model.attention}
    if settings.tokenizer.kind in ("huggingface", "train"):
        kept = {name: tree["tokenizer"][name] for name in FORMER_VALUES}
        tree["tokenizer"] = {"kind": "huggingface", "path": str(_tokenizer_in(folder)), **kept}
        tree["data"].setdefault("chat", {})["template"] = None  # it is among the files of the tokenizer
    return restore_settings(tree)


def _tokenizer_in(folder: Path) -> Path:
    """Return the path of the tokenizer: transformers refuses a folder whose config.json has an unknown model type."""
    from holdfast.adapters.shared.decoder.huggingface_config import OWN_TYPE

    config = folder / "config.json"
    is_own = config.is_file() and json.loads(config.read_text(encoding="utf-8")).get("model_type") == OWN_TYPE
    return folder / "tokenizer.json" if is_own else folder


def _report_nothing(_: str) -> None:
    pass


def uses_average(folder: Path, choice: Choice) -> bool:
    """Return whether ``choice`` means the average of the weights: it is in the checkpoint, and is not left out."""
    return not choice.trained and (folder / AVERAGE_FILE).exists()


def opening_weights(folder: Path, open_file: OpenFile, choice: Choice) -> OpenFile:
    """Return a function that opens the files of a checkpoint, the average in place of the weights if ``choice`` is it.

    Files are opened by ``open_file``.
    """
    if not uses_average(folder, choice):
        return open_file

    @contextmanager
    def opened(path: Path) -> Iterator[StateFile]:
        with open_file(path.with_name(AVERAGE_FILE) if path.name == MODEL_FILE else path) as file:
            yield file

    return opened
