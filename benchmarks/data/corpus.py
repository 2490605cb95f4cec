"""The text that the figures of the data plane are measured on."""

from __future__ import annotations

import io
import json
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from holdfast.adapters.data_source.formats.compression import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHARED = Path(__file__).parents[3] / "shared" / "data"
LENGTH = 1024
ROWS = 64

_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_FILES = 8


@final
@dataclass(frozen=True, slots=True)
class Corpus:
    """JSON Lines below ``folder``, and the tokenizer that all use.

    ``one`` holds each document once, ``many`` is ``copies`` times the same files under other names. ``portion`` is two
    files of it for what is slow, ``file`` one of these. Documents are dealt to files at random, so all read alike.
    """

    folder: Path
    copies: int

    @property
    def tokenizer(self) -> str:
        """Return the path of the tokenizer."""
        return str(self.folder / "tokenizer.json")

    @property
    def one(self) -> str:
        """Return the folder of each document once."""
        return str(self.folder / "one")

    @property
    def many(self) -> str:
        """Return the folder of the copies."""
        return str(self.folder / "many")

    @property
    def portion(self) -> str:
        """Return the folder of the two files."""
        return str(self.folder / "portion")

    @property
    def file(self) -> str:
        """Return the folder of the one file."""
        return str(self.folder / "file")

    def grown(self, factor: int) -> str:
        """Return a folder with as many files as ``one``, ``factor`` times the text of ``many`` in all."""
        target = self.folder / f"grown-{factor}"
        if not target.exists():
            target.mkdir()
            for source in Path(self.one).iterdir():
                content = source.read_bytes()
                with (target / source.name).open("wb") as grown:
                    for _ in range(factor * self.copies):
                        grown.write(content)
        return str(target)


def build_corpus(folder: Path, *, copies: int, share: float = 1.0) -> Corpus:
    """Write the corpus, ``share`` of its documents, below ``folder``."""
    corpus = Corpus(folder, copies)
    documents = list(_documents())
    order = np.random.default_rng(0).permutation(len(documents))[: int(share * len(documents))]
    lines = [json.dumps({"text": documents[number]}, ensure_ascii=False) + "\n" for number in order]
    for name in (corpus.one, corpus.many, corpus.portion, corpus.file):
        Path(name).mkdir()
    for number in range(_FILES):
        path = Path(corpus.one) / f"{number}.jsonl"
        path.write_text("".join(lines[number::_FILES]), encoding="utf-8")
        for copy in range(copies):
            os.link(path, Path(corpus.many) / f"{copy:02}-{number}.jsonl")
    _write_portion(corpus, lines)
    _write_tokenizer(Path(corpus.tokenizer), [json.loads(line)["text"] for line in lines])
    return corpus


def texts_of(folder: str) -> Iterator[str]:
    """Yield the documents of a folder, file by file."""
    for path in sorted(Path(folder).iterdir()):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _write_portion(corpus: Corpus, lines: Sequence[str]) -> None:
    part = lines[: len(lines) // 8]
    for number in range(2):
        content = "".join(part[number::2])
        (Path(corpus.portion) / f"{number}.jsonl").write_text(content, encoding="utf-8")
    os.link(Path(corpus.portion) / "0.jsonl", Path(corpus.file) / "0.jsonl")


def _documents() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if not _NOT_THE_LIBRARY & set(path.relative_to(root).parts):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            if text and not text.isspace():
                yield text
    if (peps := SHARED / "peps.jsonl.zst").exists():
        with peps.open("rb") as packed:
            for line in io.TextIOWrapper(unpacked(packed, "zst"), encoding="utf-8"):
                yield json.loads(line)["text"]


def _write_tokenizer(path: Path, texts: Sequence[str]) -> None:
    if (shared := SHARED / "bpe32k.json").exists():
        path.write_bytes(shared.read_bytes())
        return
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
