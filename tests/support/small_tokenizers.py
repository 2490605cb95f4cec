"""Small tokenizers of each kind that a GGUF file can hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    "the model reads text and learns to say what comes next, doesn't it?",
    "In 2024 they'd 1234567 tests;\n\n\tand we'll add 3.14 more...  ok",
    "Größe naïve Ünïcode · 你好世界 · здравствуй мир · \U0001f642 ½",
    "def f(x):\r\n    return x ** 2\n\n\n",
    " CamelCase HTTPServer's I'M",
]
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": None,
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
}


def small_tokenizer(split: str, *, vocabulary_size: int = 400, adds_bos: bool = False) -> Tokenizer:
    """Return a byte-level tokenizer that splits text as ``split`` says, with two special tokens and an ordinary one."""
    core = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    pattern = PATTERNS[split]
    if pattern is None:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        steps = pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - 2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXTS * 4, trainer)
    core.add_special_tokens([AddedToken("<|begin|>", special=True, normalized=False)])
    core.add_tokens([AddedToken("<tool>", normalized=False)])
    if adds_bos:
        begin = core.token_to_id("<|begin|>")
        core.post_processor = processors.TemplateProcessing("<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return core


def sentencepiece_tokenizer(*, vocabulary_size: int = 400, doubles_space: bool = True) -> Tokenizer:
    """Return a tokenizer like that of Llama 2: BPE with marks for spaces, bytes for other characters, a beginning.

    ``doubles_space`` is whether a space is put before a text that begins with one.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    size = vocabulary_size - 3 - 256
    trained.train_from_iterator(TEXTS[:1] * 4, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    ours = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *ours]
    vocabulary = {name: number for number, name in enumerate(names)}
    cuts = [(token[:cut], token[cut:]) for token in ours for cut in range(1, len(token))]
    merges = [pair for pair in cuts if all(each in ours for each in pair)]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if doubles_space:
        core.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(steps)
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[:3]])
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return core


def write_tokenizer(core: Tokenizer, folder: Path, **fields: object) -> None:
    """Write the files that ``AutoTokenizer`` loads ``core`` from into ``folder``; ``fields`` come into the second."""
    core.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast", **fields}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
