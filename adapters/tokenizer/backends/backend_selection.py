"""Selects the fastest backend whose ids equal those of the reference."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import accumulate, pairwise
from threading import Lock, RLock
from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Regex, pre_tokenizers

from holdfast.adapters.tokenizer.backends.encoder import UnfitError, check_surrogates, join, join_ids
from holdfast.adapters.tokenizer.backends.huggingface import HuggingfaceEncoder
from holdfast.adapters.tokenizer.backends.text_pieces import TextPieces
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
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


_WRITTEN = (
    "",
    " ",
    "\ufeffbegins with a mark, ends with none",
    "It's I'M we'RE they've he'd YOU'LL don't 'tis ''s 'S's'\u017f \u2019s rock'n'roll",
    "for i in range(10):\n\t\tprint(i ** 2)  # 100,000.5e-3\n\n\n    return {'a': [1, 2]}\r\n",
    "mixed\nlines\r\nof\rall\n\rkinds \r\n\r\n \n  \n\t \x0b\x0c\x1c\x85\u2028\u2029 end  ",
    " two  three   four    tab\t\ttabs \t mixed\t a \u00a0 b\u00a0\u00a0c \u3000\u2003\u200b\u202f d",
    "1 12 123 1234 12345 3.14159 1e10 0x1F 1,000,000 \u0663\u0664 \u00b2\u00bd \u2167 \u4e09\u5341 v1.2.3-rc4",
    "Gr\u00fc\u00dfe e\u0301 \u00e9 \ufb01 \u2126 n\u0303a \u0301 \u0915\u094d\u0937",
    "\u0e01\u0e33 \u1100\u1161\u11a8 \uac01 \u1e9b\u0323 \u0327c \u0345\u03b1",
    "\u6771\u4eac\u3067\u30c6\u30b9\u30c8\u3002\u4f60\u597d\uff0c\u4e16\u754c\uff01 \ud55c\uad6d\uc5b4 \U00020000",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202eabc\u202c \u200fdef\u200e \u064b\u0651",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea #\ufe0f\u20e3 \U0001fae8",
    "\ufffd\ufffe\uffff\ufdd0\U0001fffe\U0010ffff\ue000\U000f0000 a\ufffeb",
    "<|endoftext|> a<|endoftext|>b </s><s> <eos> [SEP][CLS] <|im_start|>x<|im_end|> <0x41> \u2581a <pad> <unk>",
    "http://a.b/c?d=e&f=g#h snake_case camelCase CONSTANT_CASE HTTPServer iPhone \u01c5 \u02b0 __init__",
    "!!! ??? ... --- === *** ((())) [[]] {{}} <<>> //// \\\\ |&|&| ~`^%$#@ \u20ac\u00a3 \u2026\u2014",
)
_LONG = tuple(text * (10_000 // len(text)) for text in (*"a =\n\t0\u00e9\u4e2d", "ab", "\r\n", " \n", "1a", "!?", " a"))


def sample_documents(core: Tokenizer) -> list[str]:
    """Return texts that are hard to split and merge, and each token of ``core``, alone and among other tokens."""
    added = [token.content for token in core.get_added_tokens_decoder().values()]
    literal = [f"{token}|a{token}b| {token} |{token}{token}\n{token}\u0301" for token in added]
    tokens = [text for text in _spelled(core) if "\ufffd" not in text]
    shuffled = np.random.default_rng(0).permutation(len(tokens))
    mixed = ["".join(tokens[index] for index in shuffled[at : at + 16]) for at in range(0, len(tokens), 16)]
    return [*_WRITTEN, *_LONG, *_characters(), *literal, *tokens, *mixed]


def find_difference(reference: Encoder, candidate: Encoder, documents: Sequence[str]) -> str | None:
    """Return a clause about the first difference between ``candidate`` and ``reference``, None if there is none."""
    expected, actual = reference.encode(documents), candidate.encode(documents)
    if _is_equal(expected, actual):
        return None
    pairs = zip(documents, expected, actual, strict=True)
    for text, right, wrong in pairs:
        if not np.array_equal(right, wrong):
            common = min(len(right), len(wrong))
            at = next((place for place in range(common) if right[place] != wrong[place]), common)
            return (
                f"for {text[:40]!r} it gives {len(wrong)} ids, Hugging Face {len(right)}, and from id {at} on "
                f"{wrong[at : at + 4].tolist()} instead of {right[at : at + 4].tolist()}"
            )
    return "its offsets or the type of its ids differ"


def _is_equal(expected: Encoded, found: Encoded) -> bool:
    is_alike = (found.ids.dtype, found.offsets.dtype) == (expected.ids.dtype, expected.offsets.dtype)
    return is_alike and np.array_equal(found.ids, expected.ids) and np.array_equal(found.offsets, expected.offsets)


def _spelled(core: Tokenizer) -> list[str]:
    ids = sorted(core.get_vocab(with_added_tokens=False).values())
    return list(core.decode_batch([[number] for number in ids], skip_special_tokens=True))


@cache
def _characters() -> tuple[str, ...]:
    # the first and the last of each run of one category: errors of character tables are at their edges
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]
    kinds = [unicodedata.category(chr(point)) for point in points]
    edges = {place for place, (one, next_one) in enumerate(pairwise(kinds)) if one != next_one}
    chosen = {*range(0x300), *(points[place] for place in edges), *(points[place + 1] for place in edges)}
    return tuple(f"a{c}a{c}{c}1{c}1 {c} .{c}.{c}\n{c} a'{c}" for c in map(chr, sorted(chosen)))


# planes 4 to 13 and the rest of 14 are empty; 15 and 16 are private use for good
_EMPTY = slice(0x40000, 0xF0000)
_ASSIGNABLE = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
_FIRST_UNSETTLED = 0x378  # earlier characters were assigned long ago
_BUILDING = Lock()


@final
class FallbackEncoder:
    """Encodes with ``fast``, but with ``reference`` the documents that ``fast`` fails on or may encode differently.

    Documents with characters on which versions of Unicode differ may be encoded differently. ``dtype`` is that of the
    ids, and ``failed`` receives the first failure.
    """

    def __init__(
        self,
        fast: Encoder,
        reference: Encoder,
        dtype: np.dtype[np.unsignedinteger],
        failed: Callable[[str], object],
    ) -> None:
        self._fast = fast
        self._reference = reference
        self._dtype = dtype
        self._failed = failed
        self._has_failed = False
        _is_unsettled()  # made here and not after the first document: it takes a while, once a process

    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``."""
        try:
            return self._encode_parted(documents)
        except DataError:
            check_surrogates(documents)  # so that the error counts along all documents
            raise

    def _encode_parted(self, documents: Sequence[str]) -> Encoded:
        unsettled = _find_unsettled(documents)
        if not unsettled:
            return self._encode_settled(documents)
        rare = set(unsettled)
        rest = self._encode_settled([text for index, text in enumerate(documents) if index not in rare])
        slow = self._reference.encode([documents[index] for index in unsettled])
        fast_parts, slow_parts = iter(rest), iter(slow)
        parts = [next(slow_parts if index in rare else fast_parts) for index in range(len(documents))]
        return join_ids(parts, self._dtype)

    def _encode_settled(self, documents: Sequence[str]) -> Encoded:
        try:
            encoded = self._fast.encode(documents)
            self._check_shape(encoded, len(documents))
        except BaseException as error:
            if _is_failure(error):
                return self._rescue(documents, error)
            raise
        return encoded

    def _rescue(self, documents: Sequence[str], error: BaseException) -> Encoded:
        if len(documents) > 1:
            half = len(documents) // 2
            return join([self._encode_settled(part) for part in (documents[:half], documents[half:])])
        if not self._has_failed:
            self._has_failed = True
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._failed(f"it fails on a document of {sum(map(len, documents)):,} characters ({reason})")
        return self._reference.encode(documents)

    def _check_shape(self, encoded: Encoded, num_documents: int) -> None:
        if (encoded.ids.dtype, encoded.offsets.dtype) != (self._dtype, np.dtype(np.int64)):
            msg = f"its ids are {encoded.ids.dtype} and its offsets {encoded.offsets.dtype}"
            raise ValueError(msg)
        if (len(encoded.offsets), encoded.offsets[-1]) != (num_documents + 1, len(encoded.ids)):
            msg = f"it gives {len(encoded.offsets) - 1} of {num_documents} documents or loses some of their ids"
            raise ValueError(msg)


def _is_failure(error: BaseException) -> bool:
    # a panic in Rust reaches Python as PanicException, which is no Exception
    is_ours = isinstance(error, (DataError, MemoryError))
    return (isinstance(error, Exception) and not is_ours) or type(error).__name__ == "PanicException"


def _find_unsettled(documents: Sequence[str]) -> list[int]:
    """Return the indexes of documents with characters that this Python or ``tokenizers`` calls unassigned.

    Whether such a character is a letter depends on the version of Unicode that a library was built with: gigatoken
    0.10 has 17, tokenizers 0.23 has 16. Assigned characters keep their category in later versions.
    """
    others = [index for index, text in enumerate(documents) if not text.isascii()]
    if not others:
        return []
    together = "".join([documents[index] for index in others])  # all at once: most documents have none
    points = np.frombuffer(together.encode("utf-32-le", "surrogatepass"), "<u4")
    places = np.flatnonzero(points >= _FIRST_UNSETTLED)
    places = places[_is_unsettled()[points[places]]]
    if not len(places):
        return []
    ends = list(accumulate(len(documents[index]) for index in others))
    return [others[number] for number in np.unique(np.searchsorted(ends, places, side="right")).tolist()]


def _is_unsettled() -> NDArray[np.bool_]:
    """Return for each code point whether libraries may disagree on it: bool (0x110000,)."""
    with _BUILDING:  # it takes a quarter of a second, once a process
        return _build_table()


@cache
def _build_table() -> NDArray[np.bool_]:
    everything = "".join(chr(point) for points in _ASSIGNABLE for point in points)
    unassigned = pre_tokenizers.Split(Regex(r"\P{Cn}+"), "removed").pre_tokenize_str(everything)
    theirs = "".join(part for part, _ in unassigned)
    ours = "".join(character for character in everything if unicodedata.category(character) == "Cn")
    table = np.zeros(0x110000, np.bool_)
    table[_EMPTY] = True
    table[list(map(ord, everything))] = False
    table[list(map(ord, theirs + ours))] = True
    table.flags.writeable = False
    return table
