"""The files of an export, and the model in them as transformers reads it back."""

from __future__ import annotations

import math
import shutil
import unicodedata
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, final

from holdfast.adapters.shared.tensor_state.file_parts import write_parts
from holdfast.bootstrap.operations.other_data import OtherData
from holdfast.domain.errors import ConfigurationError, DataError, StateError, TrainingError
from holdfast.domain.phase import Amount
from holdfast.domain.training.export_format import ExportFormat, ExportKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.bootstrap.operations.trained_model import Trained
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.export_format import Sparsity
    from holdfast.ports.state_store import StatePart
    from holdfast.ports.tokenizer import Tokenizer

Result = TypeVar("Result")

_SOURCE, _GENERATION = ".source", "generation_config.json"
_SAMPLE = (
    "It's 12,345 o'clock:  they'll say 'we've 3 of the 1000000 tests'!\n\n\tdef f(x):\r\n    return x ** 2 # ok \n",
    "Größe naïve Ünïcode · 你好世界 · здравствуй мир · مرحبا · 🙂👩‍🚀 ½ ² ①",
)


@final
@dataclass(frozen=True, slots=True)
class ExportContent:
    """The ``parts`` of a model as transformers loads them, its tokenizer, and the ``name`` of the run.

    ``ends`` are the ids at which the model stops by its settings of generation, which are among the parts. ``notes``
    are remarks on the parts for a person.
    """

    parts: Sequence[StatePart]
    tokenizer: Tokenizer
    name: str
    ends: Sequence[int] = ()
    notes: Sequence[str] = ()


def require_packages(order: ExportOrder) -> None:
    """Raise ``ConfigurationError`` if the package that the format needs is not installed."""
    if order.format.kind is ExportKind.GGUF:
        from holdfast.adapters.shared.model_export.gguf_file import gguf_package

        gguf_package()
    elif order.format.kind is ExportKind.TORCHAO:
        from holdfast.adapters.shared.model_export.torchao_folder import torchao_package

        torchao_package()


def write_files(content: ExportContent, order: ExportOrder, folder: Path) -> Sequence[str]:
    """Write the files of the format into the empty ``folder``; return remarks.

    Raises ``ConfigurationError`` if the format cannot hold the model or the tokenizer, and ``OSError``.
    """
    if order.format.kind is ExportKind.GGUF:
        return _write_gguf(content, order, folder)
    if order.format.kind is ExportKind.TORCHAO:
        return _write_torchao(content, order, folder)
    parts = content.parts
    if order.format.weights is not None:
        from holdfast.adapters.shared.model_export.whole_model import in_dtype

        parts = in_dtype(parts, order.format.weights)
    write_parts(parts, folder)
    content.tokenizer.write(folder)
    return ()


def read_network(content: ExportContent, order: ExportOrder, folder: Path) -> Any:
    """Return the network in ``folder`` as transformers reads it; raises ``StateError`` if it cannot."""
    with _read_back():
        if order.format.kind is ExportKind.GGUF:
            from holdfast.adapters.shared.model_export.gguf_file import read_gguf
            from holdfast.adapters.shared.model_export.whole_model import whole_model

            return read_gguf(_gguf_path(folder, order), whole_model(content.parts).config)
        if order.format.kind is ExportKind.TORCHAO:
            from holdfast.adapters.shared.model_export.torchao_folder import read_torchao

            return read_torchao(folder)
        return _read_huggingface(folder)


@contextmanager
def _read_back() -> Iterator[None]:
    """Turn the errors of transformers within the block into ``StateError``."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:  # of transformers over a file have no common type
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        msg = f"transformers cannot read the export back ({reason}): with --unchecked it is written all the same"
        raise StateError(msg) from error


def check_tokenizer(content: ExportContent, order: ExportOrder, folder: Path, texts: Sequence[str]) -> None:
    """Raise ``StateError`` if transformers reads a tokenizer from a GGUF file in ``folder`` that has other ids.

    They are compared on ``texts`` and on some difficult ones. Other formats have the files of the tokenizer itself.
    """
    if order.format.kind is not ExportKind.GGUF:
        return
    from tokenizers.pre_tokenizers import Metaspace

    from holdfast.adapters.shared.model_export.gguf_file import read_gguf_tokenizer

    with _read_back():
        theirs = read_gguf_tokenizer(_gguf_path(folder, order))
    # which are ordinary text for us
    special = [token.content for token in theirs.added_tokens_decoder.values() if token.special]
    # transformers reads each tokenizer of SentencePiece as one that has no space before a text with a space
    is_stripped = isinstance(theirs.backend_tokenizer.pre_tokenizer, Metaspace)
    for text in (*_SAMPLE, *texts):
        plain = unicodedata.normalize("NFC", text)
        plain = plain.lstrip(" ") if is_stripped else plain
        if any(token in plain for token in special):
            continue
        ids = theirs.encode(plain, add_special_tokens=False)
        if content.tokenizer.encode([plain]).ids.tolist() != ids:
            msg = f"the tokenizer that transformers reads from the GGUF file gives other ids for {plain[:40]!r}"
            raise StateError(msg)


def _write_gguf(content: ExportContent, order: ExportOrder, folder: Path) -> Sequence[str]:
    from holdfast.adapters.shared.model_export.gguf_file import GgufDescription, GgufModel, write_gguf
    from holdfast.adapters.shared.model_export.gguf_vocabulary import read_vocabulary
    from holdfast.adapters.shared.model_export.whole_model import whole_model
    from holdfast.adapters.tokenizer.chat_template import FILE, template_in
    from holdfast.adapters.tokenizer.document_frame import CONFIG

    assert order.format.weights is not None
    model = whole_model(content.parts)

    def read_tokenizer(source: Path) -> GgufModel:
        content.tokenizer.write(source)
        if not (source / "tokenizer.json").is_file():
            msg = "the tokenizer has no tokenizer.json, which GGUF is made from: export with --format huggingface"
            raise ConfigurationError(msg)
        contents = {name: (source / name).read_bytes() for name in (CONFIG, FILE) if (source / name).is_file()}
        template = template_in(contents)
        description = GgufDescription(content.name, order.license, None if template is None else template[0])
        vocabulary = read_vocabulary(source, size=model.config.vocab_size, ends=content.ends)
        return GgufModel(model.config, model.tensors, vocabulary, description)

    whole = _in_scratch(folder, read_tokenizer)
    return write_gguf(whole, _gguf_path(folder, order), order.format.weights)


def _write_torchao(content: ExportContent, order: ExportOrder, folder: Path) -> Sequence[str]:
    from holdfast.adapters.shared.model_export.torchao_folder import write_torchao
    from holdfast.adapters.shared.model_export.whole_model import whole_model

    weights, model = order.format.weights, whole_model(content.parts)
    assert weights is not None
    notes = _in_scratch(folder, lambda source: write_torchao(model, source, folder, weights))
    write_parts([part for part in content.parts if part.name == _GENERATION], folder)
    content.tokenizer.write(folder)
    return notes


def _in_scratch(folder: Path, work: Callable[[Path], Result]) -> Result:
    """Return the result of ``work`` with a folder in ``folder`` that is deleted after it."""
    source = folder / _SOURCE
    source.mkdir()
    try:
        return work(source)
    finally:
        shutil.rmtree(source)


def _read_huggingface(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    from holdfast.adapters.shared.model_export.whole_model import silenced

    options = {"dtype": "float32", "use_safetensors": True, "trust_remote_code": False}
    with silenced():
        network, report = AutoModelForCausalLM.from_pretrained(str(folder), output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        msg = f"{folder} lacks {len(missing)} of the model's tensors, such as {missing[0]}"
        raise StateError(msg)
    return network


def _gguf_path(folder: Path, order: ExportOrder) -> Path:
    return folder / f"model-{str(order.format.weights).upper()}.gguf"


def is_export(folder: Path) -> bool:
    """Return whether the files in ``folder`` may be those of an export; raises ``OSError``."""
    names = ("config.json", "adapter_config.json")
    return any((folder / name).is_file() for name in names) or any(folder.glob("*.gguf"))


_MOST_TEXTS = 50


@final
class LossComparison:
    """Compares the loss of ``trained`` with that of its export, on the documents that ``evaluate`` measures.

    The loss of the original is measured at once. Without any documents nothing is compared, and ``note`` says so.
    Raises ``ConfigurationError`` if there are none and the order limits the loss, and ``DataError`` or ``StateError``
    if they cannot be read.
    """

    def __init__(self, trained: Trained, model: CausalLanguageModel, order: ExportOrder, show: ShowPhase) -> None:
        self._order = order
        self._show = show
        self._batches = _batches_of(trained)
        self._decode = trained.tokenizer.decode
        self._before = self._measure(model, "of the original") if self._batches else math.nan
        self.note: str | None = None
        if not self._batches:
            self.note = "the run held out nothing to predict, so no loss was compared: --data FILE measures on others"
            if order.max_loss_increase is not None:
                msg = "--max-loss-increase needs documents, but the run held out nothing to predict: add --data FILE"
                raise ConfigurationError(msg)

    def texts(self) -> Sequence[str]:
        """Return the first documents as texts."""
        pieces = (piece for batch in self._batches for piece in batch.pieces())
        return [self._decode(piece.input_ids[0].tolist()) for piece, _ in zip(pieces, range(_MOST_TEXTS), strict=False)]

    def change(self, network: Any) -> LossChange | None:
        """Return the change of the loss to that of ``network``, None without documents.

        Raises ``StateError`` if that is not a number or beyond the limit of the order.
        """
        from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
        from holdfast.adapters.shared.modeling.loss_selection import choose_loss

        if not self._batches:
            return None
        model = CausalLanguageModel(network)
        choose_loss(model)
        num_targets = sum(batch.num_targets for batch in self._batches)
        change = LossChange(self._before, self._measure(model, "of the export"), num_targets)
        limit = self._order.max_loss_increase
        if not math.isfinite(change.after) and math.isfinite(change.before):
            msg = f"the held-out loss of the export is {change.after}: nothing was written, choose another format"
            raise StateError(msg)
        if limit is not None and not change.increase <= limit:
            msg = (
                f"the held-out loss of the export is {change.after:.4f} nats/token, {change.increase:+.2%} from the "
                f"original's {change.before:.4f} and beyond --max-loss-increase {limit:.2%}: nothing was written, "
                "choose a format with more bits or less sparsity"
            )
            raise StateError(msg)
        return change

    def _measure(self, model: CausalLanguageModel, whose: str) -> float:
        from holdfast.adapters.shared.modeling.mean_loss import mean_loss

        done, total = 0, sum(batch.num_targets for batch in self._batches)

        def passed(count: int) -> None:
            nonlocal done
            done += count
            self._show(f"measuring the loss {whose}", Amount(done, total, "tokens"))

        loss = mean_loss(model, self._batches, passed=passed)
        self._show("")
        return loss


def _batches_of(trained: Trained) -> Sequence[Batch]:
    try:
        return [batch for batch in trained.measured_batches() if batch.num_targets]
    except (DataError, StateError) as error:
        remedy = "name other documents with --data FILE, or write it unread with --unchecked"
        msg = f"the export cannot be compared with the original: {error}; {remedy}"
        raise type(error)(msg) from error


@final
@dataclass(frozen=True, slots=True)
class ExportOrder:
    """The form of an export.

    ``merged`` adds the adapters of a run to its weights. ``max_loss_increase`` is the largest relative increase of the
    held-out loss, None for any. ``license`` is the licence in the model card. Without ``is_checked`` the export is not
    read back. ``data`` replaces the held-out documents if it names any.
    """

    format: ExportFormat = field(default_factory=ExportFormat)
    merged: bool = False
    sparsity: Sparsity | None = None
    max_loss_increase: float | None = None
    license: str | None = None
    is_checked: bool = True
    data: OtherData = field(default_factory=OtherData)


@final
@dataclass(frozen=True, slots=True)
class LossChange:
    """The loss of the original and of the export on the same ``num_targets`` tokens, in nats per token."""

    before: float
    after: float
    num_targets: int

    @property
    def increase(self) -> float:
        """Return the increase as a share of the loss before."""
        return (self.after - self.before) / self.before if self.before else math.copysign(math.inf, self.after)


@final
@dataclass(frozen=True, slots=True)
class Exported:
    """An export of the checkpoint at ``location``; ``is_new`` if it was written now.

    ``change`` is None if no loss was compared. ``zeros`` is the share of zeros in the linear layers that were pruned,
    as they were read back, None if none were. ``notes`` are remarks for a person, and ``num_bytes`` the size of all
    files.
    """

    location: str = ""
    is_new: bool = True
    change: LossChange | None = None
    zeros: float | None = None
    notes: Sequence[str] = ()
    num_bytes: int = 0
