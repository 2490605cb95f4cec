"""Any tokenizer that Hugging Face's ``tokenizers`` library can run."""

from __future__ import annotations

import json
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.shared.decoder.huggingface_config import OWN_TYPE
from holdfast.adapters.shared.network.hub_names import guess, names_folder
from holdfast.adapters.tokenizer import hf_core as core
from holdfast.adapters.tokenizer.backends.backend_selection import ChosenEncoder
from holdfast.adapters.tokenizer.chat_template import (
    JinjaChatTemplate,
    files_with_template,
    source_with_tools_in,
    template_in,
)
from holdfast.adapters.tokenizer.document_frame import (
    config_in,
    contradiction,
    named_tokens,
    settle_frame,
    with_frame,
)
from holdfast.adapters.tokenizer.model_tokenizer import TokenizerSource, parts_of, parts_of_file, published_parts
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded
from holdfast.ports.tokenizer import HasChatTemplate, ShowsSpecialTokens, SurroundsDocuments, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.tokenizer.document_frame import AddBos
    from holdfast.ports.tokenizer import Encoded, TemplateChoice


@final
class HuggingfaceTokenizer(Tokenizer, SurroundsDocuments, HasChatTemplate, ShowsSpecialTokens):
    """Encodes with a ``tokenizer.json``; special tokens in a document are ordinary text.

    ``serialized`` is the text of that file and ``name`` its name in errors. ``end_of_text`` is the token that ends a
    document; if None, a commonly used one is looked up. ``files`` are the files that ``write`` writes; if None, it
    writes ``tokenizer.json`` and its configuration. The chat template is looked for in ``beside``, or in the files that
    are written. ``add_bos`` is ``auto`` for documents between the special tokens that the post-processor puts around
    a text, true for a beginning of text before each, or false for none but ``end_of_text``; the files that are written
    say the same. ``backend`` is the encoder, always with the same ids:
    ``huggingface``, ``tiktoken``, ``gigatoken`` or ``auto``, the fastest that is installed and equal; it is built and
    tried when first needed, and ``report`` receives the choice. Raises ``ConfigurationError`` if the tokenizer cannot
    keep the port's promise.
    """

    def __init__(
        self,
        serialized: str,
        *,
        name: str = "tokenizer.json",
        end_of_text: str | None = None,
        files: Mapping[str, bytes] | None = None,
        beside: Mapping[str, bytes] | None = None,
        add_bos: AddBos = "auto",
        backend: str = "auto",
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._name = name
        self._core = core.load_core(serialized, name)
        token = core.settle_end_of_text(self._core, name, end_of_text)
        self._vocabulary_size = core.size_of(self._core, name)  # first: tokenizers writes out each id up to the largest
        self._end_of_text = self._core.get_vocab(with_added_tokens=True)[token]
        known = (files if beside is None else beside) or {}
        with core.telling_panics(name):
            frame = settle_frame(self._core, name, add_bos, known, self._end_of_text)
            self._around = frame.with_end(self._end_of_text)
            reading = core.reading_core(self._core)
            core.check_special_tokens(self._core, reading, name, self._end_of_text)
        dtype: np.dtype[np.unsignedinteger] = np.dtype(np.uint16 if self._vocabulary_size <= 1 << 16 else np.uint32)
        self._encoder = ChosenEncoder(reading, dtype, backend=backend, report=report)
        self._files = (
            files if files is not None else core.files_of(self._core, token, named_tokens(known, self._core, frame))
        )
        if add_bos != "auto":
            self._files = with_frame(self._files, self._core, frame)
        self._templates = self._files if beside is None else beside
        self._rendering: Mapping[str, Any] = {}

    @classmethod
    def load(
        cls,
        path: str,
        revision: str | None = None,
        *,
        add_bos: AddBos = "auto",
        loader: Literal["file", "transformers"] = "file",
        backend: str = "auto",
        report: Callable[[str], object] = lambda _: None,
        follows_model: bool = False,
    ) -> Self:
        """Return the tokenizer of a ``tokenizer.json``, a model folder or a model on the Hugging Face hub.

        Code that comes with a model is never run. ``add_bos`` is as for the class. ``loader`` is ``file`` to encode as
        the ``tokenizer.json`` of a model says, or ``transformers`` to encode as ``AutoTokenizer`` makes of it.
        ``follows_model`` says that the user chose the model and not a tokenizer, for messages. Raises
        ``ConfigurationError`` if the tokenizer does not exist or cannot be loaded.
        """
        file = _own_file(expanded(path))
        _check_exists(file, path, follows_model=follows_model)
        if file.is_file():
            parts = parts_of_file(file, path)
            config = config_in(parts["beside"])
        else:
            source = TokenizerSource(str(file) if file.is_dir() else path, revision, path)
            try:
                with core.telling_panics(path):
                    model, config = source.load(follows_model=follows_model), source.config()
            except ConfigurationError as error:
                msg = f"{error}{guess(path)}"
                raise ConfigurationError(msg) from error
            with core.telling_panics(path):
                parts = parts_of(model) if loader == "transformers" else published_parts(source, model, report)
        made = cls(**parts, name=path, add_bos=add_bos, backend=backend, report=report)
        if add_bos == "auto" and (sentence := contradiction(config, made.around[0])) is not None:
            report(sentence)
        return made

    @property
    def backend(self) -> str:
        """Return the name of the backend in use."""
        return self._encoder.name

    def check(self, documents: Sequence[str]) -> None:
        """Compare the backend with Hugging Face on ``documents`` too; a backend that differs is replaced.

        Raises ``ConfigurationError`` if the settings name a backend that cannot be used.
        """
        with core.telling_panics(self._name):
            self._encoder.check(documents)

    @property
    @override
    def vocabulary_size(self) -> int:
        return self._vocabulary_size

    @property
    @override
    def end_of_text(self) -> int:
        return self._end_of_text

    @property
    @override
    def around(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._around

    @cached_property
    @override
    def token_bytes(self) -> NDArray[np.int32]:
        return core.count_token_bytes(self._core, self._vocabulary_size)

    @override
    def encode(self, documents: Sequence[str]) -> Encoded:
        with core.telling_panics(self._name):
            return self._encoder.encode(documents)

    @override
    def decode(self, ids: Sequence[int]) -> str:
        with core.telling_panics(self._name):
            return str(self._core.decode([int(number) for number in ids], skip_special_tokens=True))

    @override
    def decode_all(self, ids: Sequence[int]) -> str:
        with core.telling_panics(self._name):
            return str(self._core.decode([int(number) for number in ids], skip_special_tokens=False))

    @override
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        around = self._around if self._around != ((), (self._end_of_text,)) else ()
        return core.fingerprint_of(self._core, self._end_of_text, around)

    @cached_property
    @override
    def chat_template(self) -> JinjaChatTemplate | None:
        template = template_in(self._templates)
        if template is None:
            return None
        options = {"source_with_tools": source_with_tools_in(self._templates), **self._rendering}
        return JinjaChatTemplate(*template, self._core, self._end_of_text, **options)

    @override
    def with_template(self, choice: TemplateChoice) -> Self:
        special = core.special_ids(self._core)
        if missing := [token for token in choice.special_tokens if self._core.token_to_id(token) not in special]:
            msg = (
                f"the tokenizer has no special token {missing[0]}, which the chat template writes: name it in "
                "tokenizer.special_tokens if the tokenizer is trained, or set data.chat.template=plain"
            )
            raise ConfigurationError(msg)
        files = files_with_template(self._files, self._templates, choice.source)
        if files is None:
            msg = "the tokenizer has no chat template: set data.chat.template to chatml, plain or a file"
            raise ConfigurationError(msg)
        other = copy(self)
        other.__dict__.pop("chat_template", None)
        other._files = other._templates = files  # noqa: SLF001  of its own kind
        other._rendering = {  # noqa: SLF001
            "options": choice.options,
            "training_date": choice.training_date,
            "checks_prompts": choice.checks_prompts,
        }
        return other

    @override
    def write(self, folder: Path) -> None:
        for name, content in self._files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def _check_exists(file: Path, path: str, *, follows_model: bool) -> None:
    if file.exists() or not (names_folder(path) or file.suffix == ".json"):
        return
    msg = f"there is no file or folder {path}: set tokenizer.path to a tokenizer.json, a folder or a hub name"
    if follows_model:
        msg = f"there is no folder {path}: set model.path to a model folder or a hub name"
    raise ConfigurationError(msg + guess(path))


def _own_file(path: Path) -> Path:
    """Return the tokenizer.json beside a model of ours in the folder ``path``, which transformers does not know."""
    try:
        is_own = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type") == OWN_TYPE
    except (OSError, ValueError, AttributeError, RecursionError):
        return path
    return path / "tokenizer.json" if is_own and (path / "tokenizer.json").is_file() else path
