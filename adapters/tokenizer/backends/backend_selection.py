"""Selects the fastest backend whose ids equal those of the reference."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, final

from holdfast.adapters.tokenizer.backends.encoder import UnfitError
from holdfast.adapters.tokenizer.backends.fallback_encoder import FallbackEncoder
from holdfast.adapters.tokenizer.backends.huggingface import HuggingfaceEncoder
from holdfast.adapters.tokenizer.backends.parity import find_difference, sample_documents
from holdfast.adapters.tokenizer.backends.text_pieces import TextPieces
from holdfast.adapters.tokenizer.surrogates import check_surrogates
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from tokenizers import Tokenizer

    from holdfast.adapters.tokenizer.backends.encoder import Encoder
    from holdfast.ports.tokenizer import Encoded

    Build = Callable[[Tokenizer, np.dtype[np.unsignedinteger]], Encoder]

_CHECKED_DOCUMENTS, _CHECKED_CHARACTERS = 64, 1 << 18


def _gigatoken(core: Tokenizer, dtype: np.dtype[np.unsignedinteger]) -> Encoder:
    from holdfast.adapters.tokenizer.backends.gigatoken import GigatokenEncoder

    return GigatokenEncoder(core, dtype)


def _tiktoken(core: Tokenizer, dtype: np.dtype[np.unsignedinteger]) -> Encoder:
    from holdfast.adapters.tokenizer.backends.tiktoken import TiktokenEncoder

    return TiktokenEncoder(core, dtype)


FAST: Mapping[str, Build] = {"gigatoken": _gigatoken, "tiktoken": _tiktoken}


@final
class ChosenEncoder:
    """Encodes with the fastest backend of ``builders`` that gives the ids of ``core``, chosen when first needed.

    ``backend`` is ``auto``, ``huggingface`` or a name in ``builders``, which are tried in their order. A candidate is
    compared with ``core`` on difficult texts and on the first documents; ``report`` receives the choice, and why
    candidates were rejected. Raises ``ConfigurationError`` if the name ``backend`` is unknown or its backend cannot be
    used.
    """

    def __init__(
        self,
        core: Tokenizer,
        dtype: np.dtype[np.unsignedinteger],
        *,
        backend: str = "auto",
        report: Callable[[str], object] = lambda _: None,
        builders: Mapping[str, Build] = FAST,
    ) -> None:
        if backend not in {"auto", "huggingface", *builders}:
            msg = f"there is no tokenizer backend {backend}: use auto, huggingface, {' or '.join(builders)}"
            raise ConfigurationError(msg)
        self._core = core
        self._dtype = dtype
        self._report = report
        self._builders = builders
        self._is_auto = backend == "auto"
        self._untried = list(builders) if self._is_auto else [name for name in builders if name == backend]
        self._missing: list[str] = []
        self._refusal: str | None = None
        self._pieces = TextPieces(core)
        self._reference = HuggingfaceEncoder(core, dtype)
        self._encoder: Encoder | None = None
        self._name = "huggingface"
        self._is_proven = False
        self._lock = RLock()

    @property
    def name(self) -> str:
        """Return the name of the backend in use."""
        self.check([])
        return self._name

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        if not self._is_proven:
            self._prove(documents)
        encode = (self._encoder or self._reference).encode
        if not self._pieces.fit(documents):
            return encode(documents)
        try:
            return self._pieces.encode(encode, documents)
        except DataError:
            check_surrogates(documents)  # so that the error counts documents, not pieces
            raise

    def check(self, documents: Sequence[str]) -> None:
        """Compare the backend with the reference on ``documents`` too; if it differs, choose the next one."""
        with self._lock:
            encoder = self._encoder or self._take_next()
            while encoder is not self._reference:
                difference = find_difference(self._reference, encoder, documents)
                if difference is None:
                    break
                self._encoder = None
                self._reject(self._name, difference)
                encoder = self._take_next()

    def _prove(self, documents: Sequence[str]) -> None:
        with self._lock:
            first = [] if self._is_proven else list(_first_of(documents))
            self.check(first)
            self._is_proven = any(first) or self._encoder is self._reference

    def _take_next(self) -> Encoder:
        if self._refusal is not None:
            raise ConfigurationError(self._refusal)
        name, encoder = "", None
        while self._untried and encoder is None:
            name = self._untried.pop(0)
            try:
                encoder = self._build(name)
            except ImportError as error:
                self._note_missing(name, error)
            except UnfitError as error:
                self._reject(name, str(error))
        self._name, self._encoder = ("huggingface", self._reference) if encoder is None else (name, encoder)
        if self._is_auto:
            better = f"; {self._missing[0]} is faster: pip install 'holdfast-lm[fast]'" if self._missing else ""
            self._report(f"the tokenizer's backend is {self._name}{better}")
        return self._encoder

    def _build(self, name: str) -> Encoder:
        fast = self._builders[name](self._core, self._dtype)
        on_trial = FallbackEncoder(fast, self._reference, self._dtype, _raise_unfit)
        if difference := find_difference(self._reference, on_trial, sample_documents(self._core)):
            raise UnfitError(difference)
        return FallbackEncoder(fast, self._reference, self._dtype, lambda reason: self._report(_failure(name, reason)))

    def _reject(self, name: str, reason: str) -> None:
        line = f"the tokenizer backend {name} cannot replace Hugging Face here: {reason}"
        if not self._is_auto:
            self._refusal = f"{line}; set tokenizer.backend to auto"
            raise ConfigurationError(self._refusal)
        self._report(line)

    def _note_missing(self, name: str, error: ImportError) -> None:
        if not self._is_auto:
            self._refusal = (
                f"the tokenizer backend {name} cannot be imported ({error}): "
                "pip install 'holdfast-lm[fast]', or set tokenizer.backend to auto"
            )
            raise ConfigurationError(self._refusal) from error
        self._missing.append(name)


def _raise_unfit(reason: str) -> None:
    raise UnfitError(reason)


def _failure(name: str, reason: str) -> str:
    return f"the tokenizer backend {name} leaves some documents to Hugging Face: {reason}"


def _first_of(documents: Sequence[str]) -> Iterator[str]:
    room = _CHECKED_CHARACTERS
    for document in documents[:_CHECKED_DOCUMENTS]:
        yield document[:room]
        room = max(0, room - len(document))
