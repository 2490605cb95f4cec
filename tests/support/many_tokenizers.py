"""Forty small tokenizers of the kinds that published models have."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.small_tokenizers import PATTERNS, TEXTS, sentencepiece_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NASTY = (
    *TEXTS,
    *("", " ", "  ", "\n", "\t\n \r\n", "1999 12345 3,000,000.5", "   leading", "trailing   ", "a  b   c"),
    *(
        "It's WE'LL they'd",
        "e\u0301 \u00e9 \ufb01 \u2126 \uff21\u3000x",
        "a\u00a0b\u200bc\u2028d",
        "\U0001f469\u200d\U0001f680",
    ),
    *("fooBar HTTPServer x_y-z", "\u2581a \u2581", "###Ing ##ing", "aaaaaaaaaaaaaaaa", "<0x41> [UNK]"),
)
_NAMES = ("<unk>", "<s>", "</s>", "<pad>", "[CLS]", "[SEP]", "[MASK]")


class Made(NamedTuple):
    """A tokenizer, the type of model beside it, and the class that its configuration names."""

    core: Tokenizer
    model_type: str
    tokenizer_class: str


def forty() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield the name of each tokenizer and what makes it."""
    types = [("gpt2", "GPT2Tokenizer"), ("llama", "PreTrainedTokenizerFast"), ("qwen2", "Qwen2Tokenizer")]
    types += [("cohere", "CohereTokenizer")]
    for (model_type, kind), split in product(types, PATTERNS):
        yield f"bytes {split} in {model_type}", lambda t=model_type, k=kind, s=split: Made(_bytes(s), t, k)
    for before, space in product(("none", "<s> $A", "$A </s>", "<s> $A </s>"), (False, True)):
        name = f"bytes {before} {'prefix space' if space else ''}"
        yield name, lambda b=before, s=space: Made(_around(_bytes("gpt-2", space=s), b), "gpt2", "GPT2Tokenizer")
    for normalizer in ("NFC", "NFKC", "Lowercase", "StripAccents"):
        make = getattr(normalizers, normalizer)
        yield f"bytes {normalizer}", lambda m=make: Made(_bytes("gpt-2", normalizer=m()), "gpt2", "GPT2Tokenizer")
    classes = [("llama", "LlamaTokenizer"), ("gemma", "GemmaTokenizer"), ("mistral", "LlamaTokenizer")]
    for (model_type, kind), doubles in product(classes, (True, False)):
        core = lambda d=doubles: sentencepiece_tokenizer(doubles_space=d)  # noqa: E731
        yield f"pieces in {model_type} {doubles}", lambda c=core, t=model_type, k=kind: Made(c(), t, k)
    unigrams = [("t5", "T5Tokenizer", "$A </s>"), ("albert", "AlbertTokenizer", "[CLS] $A [SEP]")]
    unigrams += [("llama", "PreTrainedTokenizerFast", "<s> $A"), ("xlnet", "PreTrainedTokenizerFast", "$A <s> </s>")]
    for (model_type, kind, frame), scheme in product(unigrams, ("always", "first")):
        yield (
            f"unigram {frame} in {model_type} {scheme}",
            lambda f=frame, s=scheme, t=model_type, k=kind: Made(_around(_unigram(s), f), t, k),
        )
    for model_type, kind in (("bert", "BertTokenizer"), ("llama", "PreTrainedTokenizerFast")):
        yield f"words in {model_type}", lambda t=model_type, k=kind: Made(_around(_words(), "<s> $A </s>"), t, k)


def _bytes(split: str, *, space: bool = False, normalizer: Any = None) -> Tokenizer:
    core = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    pattern = PATTERNS[split]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=pattern is None)
    steps = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    core.pre_tokenizer = pre_tokenizers.Sequence([*steps, whole]) if steps else whole
    core.decoder = decoders.ByteLevel()
    if normalizer is not None:
        core.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([*TEXTS, *NASTY] * 2, trainers.BpeTrainer(vocab_size=390, initial_alphabet=alphabet))
    return _named(core)


def _unigram(scheme: str) -> Tokenizer:
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    core.decoder = decoders.Metaspace(prepend_scheme=scheme)
    core.train_from_iterator(
        [*TEXTS, *NASTY] * 4,
        trainers.UnigramTrainer(vocab_size=200, special_tokens=list(_NAMES), unk_token="<unk>", show_progress=False),
    )
    return core


def _words() -> Tokenizer:
    core = Tokenizer(models.WordPiece(unk_token="<unk>"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(_NAMES), show_progress=False)
    core.train_from_iterator([*TEXTS, *NASTY] * 4, trainer)
    return core


def _named(core: Tokenizer) -> Tokenizer:
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _NAMES])
    return core


def _around(core: Tokenizer, single: str) -> Tokenizer:
    if single != "none":
        used = [(name, core.token_to_id(name)) for name in _NAMES if name in single.split()]
        core.post_processor = processors.TemplateProcessing(single, special_tokens=used)
    return core
