"""Any tokenizer that Hugging Face's ``tokenizers`` library can run."""

from __future__ import annotations

import json
from copy import copy
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.shared.decoder.huggingface_config import OWN_TYPE
from holdfast.adapters.shared.network.hub_names import names_folder
from holdfast.adapters.tokenizer import hf_core as core
from holdfast.adapters.tokenizer.backends.backend_selection import ChosenEncoder
from holdfast.adapters.tokenizer.chat_template import (
    JinjaChatTemplate,
    files_beside,
    files_with_template,
    source_with_tools_in,
    template_in,
)
from holdfast.adapters.tokenizer.document_frame import config_in, contradiction, settle_frame, with_frame
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.tokenizer import HasChatTemplate, ShowsSpecialTokens, SurroundsDocuments, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        self._core = core.load_core(serialized, name)
        token = core.settle_end_of_text(self._core, name, end_of_text)
        self._end_of_text = self._core.get_vocab(with_added_tokens=True)[token]
        known = (files if beside is None else beside) or {}
        frame = settle_frame(self._core, name, add_bos, known, self._end_of_text)
        if add_bos == "auto" and (sentence := contradiction(config_in(known), frame.prefix)) is not None:
            report(sentence)
        self._around = frame.with_end(self._end_of_text)
        core.check_special_tokens(self._core, name, self._end_of_text)
        self._vocabulary_size = 1 + max(self._core.get_vocab(with_added_tokens=True).values())
        dtype: np.dtype[np.unsignedinteger] = np.dtype(np.uint16 if self._vocabulary_size <= 1 << 16 else np.uint32)
        self._encoder = ChosenEncoder(self._core, dtype, backend=backend, report=report)
        self._files = files if files is not None else core.files_of(self._core, token)
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
        backend: str = "auto",
        report: Callable[[str], object] = lambda _: None,
        follows_model: bool = False,
    ) -> Self:
        """Return the tokenizer of a ``tokenizer.json``, a model folder or a model on the Hugging Face hub.

        Code that comes with a model is never run. ``add_bos`` is as for the class. ``follows_model`` says that the user
        chose the model and not a tokenizer, for messages. Raises ``ConfigurationError`` if the tokenizer does not exist
        or cannot be loaded.
        """
        file = _own_file(Path(path).expanduser())
        if not file.exists() and (names_folder(path) or file.suffix == ".json"):
            msg = f"there is no file or folder {path}: set tokenizer.path to a tokenizer.json, a folder or a hub name"
            if follows_model:
                msg = f"there is no folder {path}: set model.path to a model folder or a hub name"
            raise ConfigurationError(msg)
        if file.is_file():
            parts = _parts_of_file(file, path)
        else:
            where = str(file) if file.is_dir() else path
            parts = _parts_of(_model_tokenizer(where, revision, name=path, follows_model=follows_model))
        return cls(**parts, name=path, add_bos=add_bos, backend=backend, report=report)

    @property
    def backend(self) -> str:
        """Return the name of the backend in use."""
        return self._encoder.name

    def check(self, documents: Sequence[str]) -> None:
        """Compare the backend with Hugging Face on ``documents`` too; a backend that differs is replaced.

        Raises ``ConfigurationError`` if the settings name a backend that cannot be used.
        """
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
        return self._encoder.encode(documents)

    @override
    def decode(self, ids: Sequence[int]) -> str:
        return str(self._core.decode([int(number) for number in ids], skip_special_tokens=True))

    @override
    def decode_all(self, ids: Sequence[int]) -> str:
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
        found = template_in(self._templates)
        if found is None:
            return None
        options = {"source_with_tools": source_with_tools_in(self._templates), **self._rendering}
        return JinjaChatTemplate(*found, self._core, self._end_of_text, **options)

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
        other._rendering = {"options": choice.options, "training_date": choice.training_date}  # noqa: SLF001
        return other

    @override
    def write(self, folder: Path) -> None:
        for name, content in self._files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def _check_has_files(model: Any) -> None:
    # as transformers returns for a folder without a tokenizer, for some types of models
    if getattr(model, "is_fast", False) and not set(model.get_vocab()) - set(model.all_special_tokens):
        msg = "there are no files of a tokenizer"
        raise ValueError(msg)


def _parts_of(model: Any) -> dict[str, Any]:
    usual = next((token for token in core.USUAL_ENDS if token in model.get_vocab()), None)
    if model.eos_token is None and usual is not None:
        model.add_special_tokens({"eos_token": usual})
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = sorted(file for file in Path(folder).rglob("*") if file.is_file())
        files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in saved}
    return {"serialized": model.backend_tokenizer.to_str(), "end_of_text": model.eos_token, "files": files}


def _parts_of_file(file: Path, name: str) -> dict[str, Any]:
    try:
        end_of_text = _configured_end(file.with_name("tokenizer_config.json"))
        return {
            "serialized": file.read_text(encoding="utf-8"),
            "end_of_text": end_of_text,
            "beside": files_beside(file),
        }
    except (OSError, ValueError) as error:
        msg = f"the tokenizer {name} cannot be read ({error}): name a tokenizer.json"
        raise ConfigurationError(msg) from error


def _configured_end(file: Path) -> str | None:
    if not file.is_file():
        return None
    token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    found: str | None = token["content"] if isinstance(token, dict) else token
    return found


def _own_file(path: Path) -> Path:
    """Return the tokenizer.json beside a model of ours in the folder ``path``, which transformers does not know."""
    try:
        is_own = json.loads((path / "config.json").read_text(encoding="utf-8")).get("model_type") == OWN_TYPE
    except (OSError, ValueError, AttributeError):
        return path
    return path / "tokenizer.json" if is_own and (path / "tokenizer.json").is_file() else path


def _model_tokenizer(path: str, revision: str | None, *, name: str, follows_model: bool) -> Any:
    # takes three seconds, torch included, and is not needed for a tokenizer.json
    from transformers import AutoTokenizer

    from holdfast.adapters.shared.network.hub import reached, refusal

    try:
        options = {"revision": revision, **reached(path, revision)}
        model = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
        _check_has_files(model)
    except ConfigurationError:
        raise
    except Exception as error:  # its errors have no common type
        reason = refusal(error, path) or (str(error).strip() or type(error).__name__).splitlines()[0]
        msg = (
            f"the tokenizer {name} cannot be loaded ({reason}): name a tokenizer.json, a folder with a tokenizer or a "
            "model on the Hugging Face hub whose tokenizer needs no code of its own"
        )
        if follows_model:
            msg = (
                f"the model {name} comes with no tokenizer that can be loaded ({reason}): set tokenizer.path to the "
                "tokenizer that the model was trained with"
            )
        raise ConfigurationError(msg) from error
    if not getattr(model, "is_fast", False):
        msg = f"the tokenizer {name} exists in Python only, which is too slow: use one that has a tokenizer.json"
        raise ConfigurationError(msg)
    return model
