"""A faster backend gives the ids of Hugging Face, or it is not used."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core

from holdfast.adapters.tokenizer.backends.backend_selection import FAST, ChosenEncoder
from holdfast.adapters.tokenizer.backends.byte_level import LETTERS
from holdfast.adapters.tokenizer.backends.encoder import UnfitError
from holdfast.adapters.tokenizer.backends.huggingface import HuggingfaceEncoder
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.tokenizer import Encoded

UINT16, UINT32 = np.dtype(np.uint16), np.dtype(np.uint32)
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = [
    " the",
    "They'RE",
    "12345",
    "\r\n",
    "    ",
    "\u088f",
    "a\u0301",
    "東京",
    "<|endoftext|>",
    "<tool>",
    "\U0001fae8",
]
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text(st.sampled_from("ab1. \n\t'sS\u00a0\u0301\u088f\U0001fae8")),
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
)


def byte_pairs(pattern=None, *, added=(), ignore_merges=False) -> Core:
    """Return BPE whose tokens show where a text is split: common bytes merge with any neighbour."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    pairs = [pair for one in "a1.Ġ" for letter in LETTERS for pair in ((one, letter), (letter, one))]
    pairs += [("a" * size, "a" * size) for size in (2, 4, 8)]
    merges = list(dict.fromkeys(pairs))
    for number, pair in enumerate(merges, len(LETTERS)):
        vocabulary["".join(pair)] = number
    core = Core(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pattern is not None:
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])
    core.add_tokens([AddedToken(token, normalized=False) for token in added])
    core.add_special_tokens(["<|endoftext|>"])
    core.encode_special_tokens = True
    return core


KINDS = {
    "gpt-2": byte_pairs(),
    "llama-3": byte_pairs(LLAMA_3, ignore_merges=True),
    "qwen-2": byte_pairs(LLAMA_3.replace("{1,3}", ""), added=["<tool>"]),
}
FIT = [(kind, name) for kind in KINDS for name in FAST if (kind, name) != ("qwen-2", "tiktoken")]
ENCODERS = {}


def encoder_of(kind, name) -> ChosenEncoder:
    pytest.importorskip(name, reason=f"{name} comes with the extra `fast`")
    if (kind, name) not in ENCODERS:
        ENCODERS[kind, name] = ChosenEncoder(KINDS[kind], UINT16, backend=name)
    return ENCODERS[kind, name]


def assert_equal(found, expected):
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.ids.tolist() == expected.ids.tolist()
    assert (found.ids.dtype, found.offsets.dtype) == (expected.ids.dtype, expected.offsets.dtype)


@pytest.mark.parametrize(("kind", "name"), FIT)
def test_any_text_gets_the_ids_of_hugging_face(kind, name):
    """Whatever the documents, a backend that passed gives the ids, offsets and types of the reference."""
    encoder, reference = encoder_of(kind, name), HuggingfaceEncoder(KINDS[kind], UINT16)

    @settings(deadline=None)
    @given(documents=st.lists(texts, max_size=5))
    def check(documents):
        assert_equal(encoder.encode(documents), reference.encode(documents))

    check()


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_random_merges_are_converted_or_refused(data):
    """A conversion to tiktoken that is not refused is exact, though nobody trained the vocabulary."""
    tokens, merges = list("abc"), []
    for _ in range(data.draw(st.integers(1, 12))):
        pair = (data.draw(st.sampled_from(tokens)), data.draw(st.sampled_from(tokens)))
        merges.append(pair)
        tokens.append("".join(pair))
    words = dict.fromkeys([*LETTERS, *("".join(pair) for pair in merges)])
    vocabulary = {token: number for number, token in enumerate(words)}
    core = Core(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=data.draw(st.booleans())))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    documents = [*tokens, *data.draw(st.lists(st.text("abc ", max_size=40), max_size=10))]
    for build in FAST.values():
        try:
            found = build(core, UINT32).encode(documents)
        except UnfitError:
            continue
        assert_equal(found, HuggingfaceEncoder(core, UINT32).encode(documents))


class Altered:
    """The reference, with one mistake made on texts that hold ``trigger``."""

    def __init__(self, core, dtype, trigger, alter):
        self.reference = HuggingfaceEncoder(core, dtype)
        self.trigger = trigger
        self.alter = alter

    def encode(self, documents):
        encoded = self.reference.encode(documents)
        return self.alter(encoded) if any(self.trigger in text for text in documents) else encoded


def one_id_off(encoded):
    return Encoded(np.append(encoded.ids[:-1], encoded.ids[-1:] ^ 1), encoded.offsets)


def wrong_type(encoded):
    return Encoded(encoded.ids.astype(np.int64), encoded.offsets)


def shifted_offset(encoded):
    offsets = encoded.offsets.copy()
    offsets[len(offsets) // 2] += 1
    return Encoded(encoded.ids, offsets)


def one_document_less(encoded):
    return Encoded(encoded.ids, encoded.offsets[:-1])


def fails(encoded):
    msg = "out of stack"
    raise RuntimeError(msg)


def chosen(trigger, alter, backend="auto", report=lambda _: None) -> ChosenEncoder:
    builders = {"altered": lambda core, dtype: Altered(core, dtype, trigger, alter)}
    return ChosenEncoder(KINDS["gpt-2"], UINT16, backend=backend, report=report, builders=builders)


RARE = (
    "\u0301",
    "<|endoftext|>",
    "a" * 10_000,
    "\r\n",
    "\U0001f469\u200d",
    "\u00a0",
    "\x1b",
    "\ufeff",
    "YOU'LL",
    "\u02ff",
)
MISTAKES = (one_id_off, shifted_offset, wrong_type, one_document_less, fails)


@pytest.mark.parametrize(
    ("trigger", "alter"), [*((text, one_id_off) for text in RARE), *(("", mistake) for mistake in MISTAKES)]
)
def test_a_wrong_backend_is_refused(trigger, alter):
    """An encoder that is wrong on one kind of text is found out before any document is encoded."""
    said = []
    encoder = chosen(trigger, alter, report=said.append)
    assert_equal(encoder.encode([f"x{trigger}"]), HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode([f"x{trigger}"]))
    assert encoder.name == "huggingface"
    assert "altered" in said[0]
    assert not any("\n" in line for line in said)


def test_a_wrong_backend_that_was_asked_for_is_an_error():
    """Who names a backend hears why it cannot be used, each time, and gets no other one."""
    encoder = chosen("\u0301", one_id_off, backend="altered")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"altered .*instead of"):
            encoder.encode(["text"])


def test_the_first_documents_are_compared_too():
    """A backend that is wrong on the run's own documents only is found out on the first of them."""
    said = []
    encoder = chosen("zyx rare zyx", one_id_off, report=said.append)
    assert encoder.name == "altered"
    documents = ["plain", "zyx rare zyx"]
    assert_equal(encoder.encode(documents), HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode(documents))
    assert encoder.name == "huggingface"
    assert any("'zyx rare zyx'" in line for line in said)


def test_documents_can_be_given_to_compare():
    """Documents that are known to be hard can be compared before the run."""
    encoder = chosen("zyx rare zyx", one_id_off, backend="altered")
    encoder.check(["plain"])
    with pytest.raises(ConfigurationError, match="zyx rare zyx"):
        encoder.check(["zyx rare zyx"])


def test_a_document_that_a_backend_fails_on_is_encoded_all_the_same():
    """Hugging Face encodes what a proven backend fails on, and the user hears of it once."""
    said = []
    encoder = chosen("zyx rare zyx", fails, report=said.append)
    documents = ["plain"] * 70 + ["zyx rare zyx", "zyx rare zyx", "more"]
    expected = HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode(documents)
    for _ in range(2):
        assert_equal(encoder.encode(documents), expected)
    assert encoder.name == "altered"
    assert sum("out of stack" in line for line in said) == 1


def test_tiktoken_survives_a_million_line_ends():
    """A run of space on which tiktoken's expression runs out of stack gets its ids from Hugging Face."""
    documents = ["before", "\n" * 1_000_000, "after"]
    found = encoder_of("gpt-2", "tiktoken").encode(documents)
    assert_equal(found, HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode(documents))


def test_tiktoken_loses_no_text():
    """Text between two matches of the expression, which tiktoken would drop, is a failure and not fewer ids."""
    pytest.importorskip("tiktoken", reason="tiktoken comes with the extra `fast`")
    encoder = FAST["tiktoken"](byte_pairs(r"\p{L}+"), UINT16)
    assert len(encoder.encode(["xyz"]).ids) == 3
    with pytest.raises(ValueError, match="skips"):
        encoder.encode(["xyz.xyz"])


@pytest.mark.parametrize("name", FAST)
def test_characters_newer_than_a_library_are_no_difference(name):
    """A character whose nature depends on the version of Unicode is split as Hugging Face splits it."""
    documents = [f"a{chr(point)}a1{chr(point)}1" for point in [*range(0x880, 0x8A0), 0xA7CE, 0x16EA0, 0x323B0, 0x40000]]
    found = encoder_of("gpt-2", name).encode(documents)
    assert_equal(found, HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode(documents))


@pytest.mark.parametrize("name", FAST)
def test_a_document_that_is_no_text_is_named_wherever_it_stands(name):
    """Half of a surrogate pair is counted along all documents, also beside those that Hugging Face encodes."""
    encoder = encoder_of("gpt-2", name)
    encoder.check([])
    for documents in (["\u088f", "plain", "x\ud800"], ["plain", "\u088f", "\u088f\ud800"]):
        with pytest.raises(DataError, match="document 2 "):
            encoder.encode(documents)


def normalized() -> Core:
    core = byte_pairs()
    core.normalizer = normalizers.Lowercase()
    return core


def digits() -> Core:
    core = byte_pairs()
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), core.pre_tokenizer])
    return core


def split_into_bytes(model) -> Core:
    """Return a tokenizer that splits a text as GPT-2 does, with another model than BPE."""
    core = Core(model)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return core


UNFIT = {
    "words behind bytes": split_into_bytes(models.WordLevel(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
    "pieces behind bytes": split_into_bytes(models.Unigram(vocab=[("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
    "words": Core(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]")),
    "pieces": Core(models.Unigram(vocab=[("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
    "normalized": normalized(),
    "digits": digits(),
    "a gap": byte_pairs(r"\p{L}+"),
}


@pytest.mark.parametrize("kind", UNFIT)
@pytest.mark.parametrize("name", FAST)
def test_what_a_backend_cannot_express_is_refused(kind, name):
    """A tokenizer of another make is left to Hugging Face by `auto`, and named as the reason otherwise."""
    pytest.importorskip(name, reason=f"{name} comes with the extra `fast`")
    said = []
    builders = {name: FAST[name]}
    automatic = ChosenEncoder(UNFIT[kind], UINT16, report=said.append, builders=builders)
    assert automatic.name == "huggingface"
    assert len(said) == 2
    with pytest.raises(ConfigurationError, match=name):
        ChosenEncoder(UNFIT[kind], UINT16, backend=name).encode(["a"])


@pytest.mark.parametrize("name", FAST)
def test_a_missing_package_is_named(monkeypatch, name):
    """Without its package a backend that was asked for is an error that names the extra; `auto` goes on and says so."""
    monkeypatch.delitem(sys.modules, f"holdfast.adapters.tokenizer.backends.{name}", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"holdfast-lm\[fast\]"):
        ChosenEncoder(KINDS["gpt-2"], UINT16, backend=name).check([])
    said = []
    automatic = ChosenEncoder(KINDS["gpt-2"], UINT16, report=said.append, builders={name: FAST[name]})
    assert automatic.name == "huggingface"
    assert len(said) == 1
    assert "holdfast-lm[fast]" in said[0]


def test_auto_takes_the_fastest():
    """Where all can be used, gigatoken is."""
    pytest.importorskip("gigatoken", reason="gigatoken comes with the extra `fast`")
    said = []
    assert ChosenEncoder(KINDS["gpt-2"], UINT16, report=said.append).name == "gigatoken"
    assert len(said) == 1


def test_an_unknown_backend_is_refused():
    """A backend that does not exist is an error that names those that do."""
    with pytest.raises(ConfigurationError, match="tiktoken"):
        HuggingfaceTokenizer(KINDS["gpt-2"].to_str(), backend="fastest")


@pytest.mark.parametrize("name", FAST)
def test_large_ids_are_kept(name):
    """Ids above 65,535 come as uint32 from each backend, whatever their order."""
    record = json.loads(KINDS["gpt-2"].to_str())
    record["model"]["vocab"] |= {"aa": 70_001, "Ġa": 70_000}
    tokenizer = HuggingfaceTokenizer(json.dumps(record), backend=name)
    assert tokenizer.encode(["aa a"]).ids.tolist() == [70_001, 70_000]
    assert tokenizer.encode(["aa a"]).ids.dtype == np.uint32


def test_the_backend_leaves_no_trace_in_the_tokenizer(tmp_path):
    """Fingerprint and files are those of the tokenizer, whatever encodes."""
    tokenizers = [HuggingfaceTokenizer(KINDS["gpt-2"].to_str(), backend=name) for name in ("huggingface", *FAST)]
    written = []
    for number, tokenizer in enumerate(tokenizers):
        tokenizer.check([])
        (folder := tmp_path / str(number)).mkdir()
        tokenizer.write(folder)
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert len({tokenizer.fingerprint() for tokenizer in tokenizers}) == 1
    assert written == [written[0]] * 3
    assert [tokenizer.backend for tokenizer in tokenizers] == ["huggingface", *FAST]


def test_threads_may_meet_at_the_first_documents():
    """Several threads that encode the first documents at once choose one backend and get one answer."""
    said = []
    encoder = ChosenEncoder(KINDS["gpt-2"], UINT16, report=said.append)
    expected = HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode(PIECES)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: encoder.encode(PIECES), range(16)):
            assert_equal(found, expected)
    assert len(said) == 1


def test_gigatoken_forgets_without_a_trace():
    """Beginning anew, so that what gigatoken remembers stays bounded, changes no id."""
    module = pytest.importorskip(
        "holdfast.adapters.tokenizer.backends.gigatoken", reason="gigatoken comes with the extra `fast`"
    )
    limits = {"characters_between_looks": 10, "most_growth": -(1 << 40)}
    encoder = module.GigatokenEncoder(KINDS["gpt-2"], UINT16, **limits)
    expected = HuggingfaceEncoder(KINDS["gpt-2"], UINT16).encode(PIECES)
    for _ in range(4):
        assert_equal(encoder.encode(PIECES), expected)
