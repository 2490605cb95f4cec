"""The vocabulary of a BPE tokenizer, of bytes or of SentencePiece, in the form of a GGUF file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

from tokenizers import Tokenizer

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FURTHER_ENDS = ("eot", "eom")
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UNCOMPOSED = "llama.cpp does not compose characters (NFC): a text with separate accents gets other ids there"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SLASHED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class TokenType(IntEnum):
    """The kinds of tokens in a GGUF file."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Split(NamedTuple):
    """A way to split text into words before merges: its name in llama.cpp, and whether words need no merges there."""

    name: str
    ignores_merges: bool


_GPT2 = _Split("gpt-2", ignores_merges=False)
_SPLITS: Mapping[str, _Split] = MappingProxyType(
    {
        rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}": _Split("llama-bpe", ignores_merges=True),
        rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}|{_REST}": _Split("qwen2", ignores_merges=False),
        rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED_REST}": _Split(
            "tekken", ignores_merges=True
        ),
        rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
        rf"|{_SLASHED_REST}": _Split("gpt-4o", ignores_merges=False),
    }
)


@final
@dataclass(frozen=True, slots=True)
class TokenMerging:
    """The way in which characters become tokens.

    ``model`` is llama.cpp's name for the kind: ``gpt2`` for bytes, with ``merges`` in order and the name ``pre`` of the
    split into words, or ``llama`` for SentencePiece, with ``scores`` of the tokens.
    """

    model: str
    pre: str
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()


@final
@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The ``tokens`` by id with their ``types``, and the way in which they are merged.

    ``special`` has the ids of the tokens ``bos``, ``eos``, ``unk`` and ``pad`` that exist, and ``eot`` and ``eom``, the
    ends of a turn and of a message, if the model stops at further ids. ``adds_bos`` and ``adds_eos`` are whether a text
    gets these tokens. ``remarks`` are for a person.
    """

    tokens: Sequence[str]
    types: Sequence[TokenType]
    merging: TokenMerging
    special: Mapping[str, int]
    adds_bos: bool
    adds_eos: bool
    remarks: Sequence[str] = ()


def read_vocabulary(folder: Path, *, size: int, ends: Sequence[int] = ()) -> GgufVocabulary:
    """Return the vocabulary of the ``tokenizer.json`` in ``folder``, filled up to ``size`` ids.

    ``ends`` are the ids at which the model stops. A file names three of them; a remark says so if there are more.
    Raises ``ConfigurationError`` if llama.cpp could not split text as this tokenizer does.
    """
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    record = json.loads(core.to_str())
    model = record["model"]
    remarks: Sequence[str] = ()
    pairs = [tuple(each.split(" ")) if isinstance(each, str) else tuple(each) for each in model.get("merges", ())]
    names = {number: token for token, number in core.get_vocab(with_added_tokens=True).items()}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(size)]
    if model.get("byte_fallback"):
        remarks = check_sentencepiece(record, pairs)
        merging = TokenMerging("llama", "default", scores=token_scores(tokens, pairs))
    else:
        merging = TokenMerging("gpt2", _split_of(record).name, [" ".join(pair) for pair in pairs])
        remarks = [] if record["normalizer"] is None else [_UNCOMPOSED]
    special = _special_tokens(folder, core)
    further = [number for number in ends if number != special.get("eos")]
    special |= zip(_FURTHER_ENDS, further, strict=False)
    if more := further[len(_FURTHER_ENDS) :]:
        remarks = (*remarks, f"llama.cpp is not told to stop at {', '.join(tokens[number] for number in more)}")
    plain, whole = (core.encode("a", add_special_tokens=adds).ids for adds in (False, True))
    return GgufVocabulary(
        tokens,
        _types_of(core, names, model, size),
        merging,
        special,
        adds_bos=whole[0] != plain[0] and whole[0] == special.get("bos"),
        adds_eos=whole[-1] != plain[-1] and whole[-1] == special.get("eos"),
        remarks=remarks,
    )


def _types_of(core: Tokenizer, names: Mapping[int, str], model: Mapping[str, Any], size: int) -> list[TokenType]:
    added = core.get_added_tokens_decoder()

    def type_of(number: int) -> TokenType:
        if number not in names:
            return TokenType.UNUSED
        if names[number] == model.get("unk_token"):
            return TokenType.UNKNOWN
        if number in added:
            return TokenType.CONTROL if added[number].special else TokenType.USER_DEFINED
        is_byte = model.get("byte_fallback") and BYTE_TOKEN.fullmatch(names[number])
        return TokenType.BYTE if is_byte else TokenType.NORMAL

    return [type_of(number) for number in range(size)]


def _special_tokens(folder: Path, core: Tokenizer) -> dict[str, int]:
    config = folder / "tokenizer_config.json"
    fields = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    found = {}
    for name in ("bos", "eos", "unk", "pad"):
        token = fields.get(f"{name}_token")
        number = core.token_to_id(token["content"] if isinstance(token, dict) else token) if token else None
        if number is not None:
            found[name] = number
    if "eos" in found:
        found.setdefault("bos", found["eos"])  # without one llama.cpp takes the id 11, whatever that is
    return found


def _split_of(record: Mapping[str, Any]) -> _Split:
    """Return the split into words that is the pre-tokenizer of ``record``; raises ``ConfigurationError`` if unknown."""
    model, normalizer = record["model"], record["normalizer"]
    if model["type"] != "BPE":
        refuse(f"its model is {model['type']}")
    if affix := model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        refuse(f"its tokens have the affix {affix}")
    if normalizer is not None and normalizer["type"] != "NFC":
        refuse(f"it changes text by {normalizer['type']}")
    steps = _steps(record["pre_tokenizer"])
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1].get("add_prefix_space"):
        refuse("it does not split text into bytes as they are")
    is_one_pattern = len(steps) == 2 and steps[0]["type"] == "Split" and not steps[1].get("use_regex", True)
    pattern = steps[0].get("pattern", {}).get("Regex", "") if is_one_pattern else ""
    if len(steps) == 1 and steps[0].get("use_regex", True):
        split = _GPT2
    elif pattern in _SPLITS and steps[0]["behavior"] == "Isolated" and not steps[0]["invert"]:
        split = _SPLITS[pattern]
    else:
        refuse("it splits text into words in a way that llama.cpp does not have")
    if bool(model.get("ignore_merges")) != split.ignores_merges:
        refuse(f"ignore_merges is {bool(model.get('ignore_merges'))} with the split {split.name}")
    return split


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if pre_tokenizer is None:
        return ()
    steps: Sequence[Mapping[str, Any]] = pre_tokenizer.get("pretokenizers", (pre_tokenizer,))
    return steps


BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_SPACE = "\u2581"
_NEVER_MERGED = -1e6
_PREPEND = [
    {"type": "Prepend", "prepend": _SPACE},
    {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
]


def check_sentencepiece(record: Mapping[str, Any], pairs: Sequence[tuple[str, ...]]) -> Sequence[str]:
    """Return remarks on the tokenizer with this ``tokenizer.json``, which llama.cpp must be able to repeat.

    ``pairs`` are its merges. They must join all neighbours whose joint text is a token, as SentencePiece does. Raises
    ``ConfigurationError`` if llama.cpp would encode in another way.
    """
    model, normalizer, before = record["model"], record["normalizer"], record["pre_tokenizer"] or {}
    if model["type"] != "BPE" or model.get("ignore_merges"):
        refuse(f"its model is {model['type']} with byte_fallback")
    is_metaspace = before.get("type") == "Metaspace" and before["prepend_scheme"] in ("always", "first")
    is_metaspace = is_metaspace and normalizer is None and not before.get("split", True)
    is_prepended = not before and (normalizer or {}).get("normalizers") == _PREPEND
    if not is_metaspace and not is_prepended:
        refuse("it does not put one space before a text and split no words, as Llama 2 does")
    vocabulary, joined = model["vocab"], set(pairs)
    added = {each["content"] for each in record["added_tokens"]}
    for token in (each for each in vocabulary if each not in added and not BYTE_TOKEN.fullmatch(each)):
        for pair in ((token[:cut], token[cut:]) for cut in range(1, len(token))):
            if pair[0] in vocabulary and pair[1] in vocabulary and pair not in joined:
                refuse(f"its merges do not join {pair[0]} and {pair[1]}, as SentencePiece would")
    return (
        ("llama.cpp puts a space before each text, this tokenizer not before one with a space",) if is_metaspace else ()
    )


def token_scores(tokens: Sequence[str], pairs: Sequence[tuple[str, ...]]) -> list[float]:
    """Return a score for each of ``tokens``: the higher, the earlier one of the merges ``pairs`` makes it."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    return [-float(ranks[token]) if token in ranks else _NEVER_MERGED for token in tokens]


def refuse(reason: str) -> NoReturn:
    """Raise ``ConfigurationError`` with the ``reason`` why a tokenizer has no place in a GGUF file."""
    msg = (
        f"the tokenizer cannot be written as GGUF: {reason}; those like the ones of GPT-2, Llama 2 and 3, Mistral, "
        "Qwen and GPT-4o can"
    )
    raise ConfigurationError(msg)
