"""The files of an export, and the model in them as transformers reads it back."""

from __future__ import annotations

import shutil
import unicodedata
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, final

from holdfast.adapters.shared.tensor_state.file_parts import write_parts
from holdfast.domain.errors import ConfigurationError, StateError, TrainingError
from holdfast.domain.training.export_format import ExportKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from holdfast.bootstrap.operations.export_order import ExportOrder
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
        found = {name: (source / name).read_bytes() for name in (CONFIG, FILE) if (source / name).is_file()}
        template = template_in(found)
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

    from holdfast.adapters.shared.model_export.library_output import silenced

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
