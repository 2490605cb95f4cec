"""A byte tokenizer, which needs no file: the bytes of UTF-8 are the ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.tokenizer.backends.encoder import check_surrogates
from holdfast.ports.tokenizer import Encoded, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_END_OF_TEXT = 256
_END_OF_TEXT_TOKEN = "<|endoftext|>"  # noqa: S105 - no password


@final
class MemoryTokenizer(Tokenizer):
    """Encodes text as its UTF-8 bytes, ids 0 to 255; 256 is end-of-text."""

    @property
    @override
    def vocabulary_size(self) -> int:
        return _END_OF_TEXT + 1

    @property
    @override
    def end_of_text(self) -> int:
        return _END_OF_TEXT

    @property
    @override
    def token_bytes(self) -> NDArray[np.int32]:
        return np.array([1] * 256 + [0], np.int32)

    @override
    def encode(self, documents: Sequence[str]) -> Encoded:
        try:
            contents = [document.encode() for document in documents]
        except UnicodeEncodeError:
            check_surrogates(documents)
            raise
        ids = np.frombuffer(b"".join(contents), np.uint8).astype(np.uint16)
        return Encoded(ids, offsets=np.cumsum([0, *map(len, contents)], dtype=np.int64))

    @override
    def decode(self, ids: Sequence[int]) -> str:
        return bytes(number for number in ids if number != _END_OF_TEXT).decode("utf-8", "replace")

    @override
    def fingerprint(self) -> str:
        return "utf-8-bytes-1"

    @override
    def write(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text(json.dumps(_serialized(), indent=2), encoding="utf-8")
        config = {
            "clean_up_tokenization_spaces": False,
            "eos_token": _END_OF_TEXT_TOKEN,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _serialized() -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": _END_OF_TEXT, "content": _END_OF_TEXT_TOKEN, **flags, "special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {_letter(byte): byte for byte in range(256)}, "merges": []},
    }


def _letter(byte: int) -> str:
    # byte-level vocabularies spell bytes that do not print as letters from 256 on, as GPT-2's did
    unprinted = [*range(33), *range(127, 161), 173]
    return chr(256 + unprinted.index(byte)) if byte in unprinted else chr(byte)
