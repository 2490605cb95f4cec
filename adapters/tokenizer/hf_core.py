"""Properties and checks of a ``tokenizers.Tokenizer``."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from tokenizers import AddedToken, Tokenizer

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from tokenizers import Tokenizer as Core

USUAL_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")

_MOST_IDS = 1 << 27
_UNREADABLE = "\ufdd0" * 16  # characters that stand for none, in Unicode's words
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


@contextmanager
def telling_panics(name: str) -> Iterator[None]:
    """Raise ``ConfigurationError`` about the tokenizer ``name`` in place of what tokenizers, in Rust, raises."""
    try:
        yield
    except BaseException as error:
        if type(error) is Exception or type(error).__name__ == "PanicException":  # the library has no names of its own
            msg = f"{name} makes the library tokenizers fail ({' '.join(str(error).split())}): use another tokenizer"
            raise ConfigurationError(msg) from error
        raise


def size_of(core: Tokenizer, name: str) -> int:
    """Return the number of ids of ``core``; raises ``ConfigurationError`` if no model has so many."""
    token, largest = max(core.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    if largest >= _MOST_IDS:
        msg = f"{name} gives {token!r} the id {largest}, and no model has {_MOST_IDS} ids: use another tokenizer"
        raise ConfigurationError(msg)
    return int(largest) + 1


def load_core(serialized: str, name: str) -> Tokenizer:
    """Return the tokenizer that the text of a ``tokenizer.json`` describes, without its processing of batches.

    Padding, truncation and dropout are off, and special tokens in a text are encoded as text. Raises
    ``ConfigurationError`` if ``tokenizers`` cannot load the text.
    """
    try:
        core = Tokenizer.from_str(serialized)
    except Exception as error:  # the library raises nothing more special
        msg = f"{name} is not a tokenizer.json that tokenizers can load ({error}): name another file"
        raise ConfigurationError(msg) from error
    core.no_padding()
    core.no_truncation()
    core.encode_special_tokens = True
    if getattr(core.model, "dropout", None):
        core.model.dropout = None
    return core


def settle_end_of_text(core: Tokenizer, name: str, token: str | None) -> str:
    """Return ``token``, or a usual one, and make it special in ``core``.

    Raises ``ConfigurationError`` if the vocabulary has none.
    """
    candidates = USUAL_ENDS if token is None else (token,)
    end = next((candidate for candidate in candidates if core.token_to_id(candidate) is not None), None)
    if end is None:
        wanted = f"none of {', '.join(USUAL_ENDS)}" if token is None else f"no {token}"
        msg = f"{name} has {wanted} that ends a document: set eos_token in tokenizer_config.json to one of its tokens"
        raise ConfigurationError(msg)
    if core.token_to_id(end) not in special_ids(core):
        core.add_special_tokens([AddedToken(end, special=True, normalized=False)])
    return end


def reading_core(core: Tokenizer) -> Tokenizer:
    """Return a tokenizer with the ids of ``core`` that reads special tokens in a text as ordinary text.

    It is ``core`` itself but for Unigram, whose special tokens lie among the scored pieces, so that a text could hold
    them. They get names there that no text has; SentencePiece does not look for such pieces in a text either.
    """
    record = json.loads(core.to_str())
    if record["model"]["type"] != "Unigram":
        return core
    names = {token["content"] for token in record["added_tokens"] if token["special"]} - {_unknown_token(core)}
    record["model"]["vocab"] = [
        [_UNREADABLE + piece if piece in names else piece, score] for piece, score in record["model"]["vocab"]
    ]
    pieces = {piece for piece, _ in record["model"]["vocab"]}
    record["added_tokens"] = [each for each in record["added_tokens"] if _UNREADABLE + each["content"] not in pieces]
    reading = Tokenizer.from_str(json.dumps(record))
    reading.encode_special_tokens = True
    return reading


def check_special_tokens(core: Tokenizer, reading: Tokenizer, name: str, end_of_text: int) -> None:
    """Raise ``ConfigurationError`` if ``reading`` gives a special token that is written out in a text its special id.

    Vocabularies of whole words may hold their special tokens as if they were words.
    """
    unknown = _unknown_token(core)
    for number, token in core.get_added_tokens_decoder().items():
        if not token.special or (token.content == unknown and number != end_of_text):
            continue
        texts = [token.content, f"a {token.content} b", f"a{token.content}b"]
        if any(number in encoding.ids for encoding in reading.encode_batch_fast(texts, add_special_tokens=False)):
            msg = (
                f"{name} reads {token.content} in a document as its special token, so a text could end a document: "
                "use another tokenizer"
            )
            raise ConfigurationError(msg)


def special_ids(core: Tokenizer) -> set[int]:
    """Return the ids of the special tokens."""
    return {number for number, token in core.get_added_tokens_decoder().items() if token.special}


def count_token_bytes(core: Tokenizer, vocabulary_size: int) -> NDArray[np.int32]:
    """Return the number of bytes of text that each id stands for, int32 (vocabulary_size,), read-only.

    It is 0 for special ids and for ids without a token.
    """
    record = json.loads(core.to_str())
    added = core.get_added_tokens_decoder()
    is_byte_level = "ByteLevel" in {*_kinds(record["pre_tokenizer"]), *_kinds(record["decoder"])}
    sizes = np.zeros(vocabulary_size, np.int32)
    for token, number in core.get_vocab(with_added_tokens=True).items():
        if number not in added:
            sizes[number] = len(token) if is_byte_level else _count_bytes(token, record["model"])
        elif not added[number].special:
            sizes[number] = len(token.encode())
    sizes.flags.writeable = False
    return sizes


def fingerprint_of(core: Tokenizer, end_of_text: int, around: Sequence[Sequence[int]]) -> str:
    """Return a hash of everything that determines the ids of a document; ``around`` are its further special ids."""
    record = json.loads(core.to_str())
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        record["model"][affix] = record["model"].get(affix) or None  # both mean that there is none
    added = [
        [token["id"], token["content"]] if token["special"] else sorted(token.items())
        for token in record["added_tokens"]
    ]
    content = [record["normalizer"], record["pre_tokenizer"], record["model"], added, end_of_text, *around]
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def files_of(core: Tokenizer, end_of_text: str, named: Mapping[str, object]) -> Mapping[str, bytes]:
    """Return the files that ``AutoTokenizer`` loads ``core`` from; ``named`` are its further special tokens by name."""
    config = {
        **named,
        "clean_up_tokenization_spaces": False,
        "eos_token": end_of_text,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return {
        "tokenizer.json": core.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }


def _unknown_token(core: Tokenizer) -> str | None:
    model = json.loads(core.to_str())["model"]
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    unknown: str | None = model.get("unk_token")
    return unknown


def _kinds(part: dict[str, Any] | None) -> Iterator[str]:
    if part is not None:
        yield part["type"]
        for inner in (*part.get("pretokenizers", ()), *part.get("decoders", ())):
            yield from _kinds(inner)


def _count_bytes(token: str, model: dict[str, Any]) -> int:
    if model.get("byte_fallback") and _BYTE_TOKEN.fullmatch(token):
        return 1
    text = token.removeprefix(model.get("continuing_subword_prefix") or "")
    return len(text.replace("▁", " ").encode())


_OPEN, _CLOSE = "\ue000", "\ue001"  # of private use: around the number of a special token in a message
_HIDDEN = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class Piece(NamedTuple):
    """A part of a rendered text from ``begin`` on; ``token`` is the special token that was hidden there, if any."""

    begin: int
    text: str
    token: str | None


@final
class HiddenSpecials:
    """Replaces the special tokens of ``core`` in messages by numbers between two private characters, and finds them."""

    def __init__(self, core: Core) -> None:
        added = core.get_added_tokens_decoder()
        self._special = sorted((added[number].content for number in special_ids(core)), key=len, reverse=True)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that finds the special tokens which a template writes."""
        return re.compile("|".join(map(re.escape, self._special)))

    def hide(self, value: Any) -> Any:
        """Return ``value``, of JSON's types, with the special tokens in all of its texts hidden."""
        if isinstance(value, str):
            own = value.replace(_OPEN, "\N{REPLACEMENT CHARACTER}")
            return self.pattern.sub(lambda found: f"{_OPEN}{self._special.index(found[0])}{_CLOSE}", own)
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return [self.hide(item) for item in value] if isinstance(value, list | tuple) else value

    def shown(self, rendered: str) -> str:
        """Return ``rendered`` with its hidden tokens written out, for a person."""
        return _HIDDEN.sub(lambda found: self._special[int(found[1])], rendered)

    def pieces(self, rendered: str) -> Iterator[Piece]:
        """Yield the hidden tokens of ``rendered`` and the texts between them, in order."""
        places = [(0, 0), *(match.span() for match in _HIDDEN.finditer(rendered)), (len(rendered),) * 2]
        for (start, begin), (end, _) in pairwise(places):
            if start != begin:
                yield Piece(start, rendered[start:begin], self._special[int(rendered[start + 1 : begin - 1])])
            if begin != end:
                yield Piece(begin, rendered[begin:end], None)
