"""Every tokenizer keeps the port's promise."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from datetime import date
from typing import TYPE_CHECKING, ClassVar

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.adapters.tokenizer.train import train_tokenizer
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from holdfast.ports.testing.tokenizer import HARD_TEXTS, ChatTemplateContract, TokenizerContract
from holdfast.ports.tokenizer import TemplateChoice

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer

CORPUS = {
    "prose": ["the quick brown fox jumps over the lazy dog, plain words and more words"] * 20,
    "hard": list(HARD_TEXTS),
}
TRAIN = """
from pathlib import Path
from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.tokenizer.train import train_tokenizer
source = MemoryDataSource({corpus!r})
choices = dict(vocabulary_size=400, max_bytes=1 << 20, usable=str, usable_key="")
tokenizer = train_tokenizer(source, cache_dir=Path({cache!r}), **choices)
"""
LOAD = """
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
tokenizer = HuggingfaceTokenizer.load({path!r}, backend={backend!r})
"""


class TestMemoryTokenizer(TokenizerContract):
    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return MemoryTokenizer()

    @pytest.fixture
    def rebuild(self) -> str:
        return "from holdfast.adapters.tokenizer.memory import MemoryTokenizer\ntokenizer = MemoryTokenizer()"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Tokenizer:
    return train_tokenizer(
        MemoryDataSource(CORPUS),
        vocabulary_size=400,
        max_bytes=1 << 20,
        usable=str,
        usable_key="",
        cache_dir=tmp_path_factory.mktemp("cache"),
    )


class TestTrainedTokenizer(TokenizerContract):
    @pytest.fixture
    def tokenizer(self, trained) -> Tokenizer:
        return trained

    @pytest.fixture
    def rebuild(self, tmp_path) -> str:
        return TRAIN.format(corpus=CORPUS, cache=str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def shelf() -> dict[type, Tokenizer]:
    return {}


class Loaded(TokenizerContract, ABC):
    """A tokenizer of a path, loaded once; ``backend`` encodes."""

    backend: ClassVar[str] = "auto"

    @abstractmethod
    def save(self, folder: Path) -> Path:
        """Save it and return the path to load."""

    @pytest.fixture
    def path(self, tmp_path) -> str:
        (tmp_path / "saved").mkdir()
        return str(self.save(tmp_path / "saved"))

    @pytest.fixture
    def tokenizer(self, shelf, path) -> Tokenizer:
        if self.backend in {"gigatoken", "tiktoken"}:
            pytest.importorskip(self.backend, reason=f"{self.backend} comes with the extra `fast`")
        if type(self) not in shelf:
            shelf[type(self)] = HuggingfaceTokenizer.load(path, backend=self.backend)
        return shelf[type(self)]

    @pytest.fixture
    def rebuild(self, path) -> str:
        return LOAD.format(path=path, backend=self.backend)


class TestHuggingfaceTokenizerOfAFile(Loaded):
    """A byte-level tokenizer.json with padding, truncation, dropout, an added word and ids that nothing has."""

    backend: ClassVar[str] = "huggingface"

    def save(self, folder) -> Path:
        core = byte_level()
        core.enable_padding(length=16)
        core.enable_truncation(4)
        record = json.loads(core.to_str())
        record["model"]["dropout"] = 0.5
        record["model"]["vocab"] |= {"<tool>": 70_000, "plain words": 70_001}
        record["added_tokens"] += [
            {**record["added_tokens"][0], "id": 70_000, "content": "<tool>"},
            {**record["added_tokens"][0], "id": 70_001, "content": "plain words", "special": False},
        ]
        file = folder / "some.json"
        file.write_text(json.dumps(record), encoding="utf-8")
        return file

    def test_ids_above_65535_are_kept(self, tokenizer):
        """A vocabulary that uint16 cannot hold has uint32 ids, and counts them up to the highest."""
        assert tokenizer.vocabulary_size == 70_002
        assert tokenizer.encode(["plain words"]).ids.tolist() == [70_001]
        assert tokenizer.token_bytes[[70_000, 70_001, 69_999]].tolist() == [0, 11, 0]


class TestHuggingfaceTokenizerWithGigatoken(TestHuggingfaceTokenizerOfAFile):
    """The same file, encoded by gigatoken."""

    backend: ClassVar[str] = "gigatoken"


class TestHuggingfaceTokenizerWithTiktoken(Loaded):
    """A byte-level tokenizer.json encoded by tiktoken."""

    backend: ClassVar[str] = "tiktoken"

    def save(self, folder) -> Path:
        file = folder / "some.json"
        file.write_text(byte_level().to_str(), encoding="utf-8")
        return file


class TestHuggingfaceTokenizerOfAFolder(Loaded):
    """A model folder as transformers writes it, with special tokens of its own."""

    def save(self, folder) -> Path:
        (folder / "tokenizer.json").write_text(byte_level("<|endoftext|>", "<|im_end|>").to_str(), encoding="utf-8")
        config = {
            "tokenizer_class": "GPT2Tokenizer",
            "eos_token": {"content": "<|im_end|>", "__type": "AddedToken", "special": True},
            "extra_special_tokens": ["<b>", "<a>", "<c>"],
            "chat_template": "{{ messages }}",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    def test_the_configured_token_ends_a_document(self, tokenizer):
        """What tokenizer_config.json calls eos_token is end-of-text, though a usual one exists."""
        assert tokenizer.end_of_text == 1

    def test_what_belongs_to_the_model_is_written_too(self, tokenizer, tmp_path):
        """The chat template of the folder is in the folder that is written."""
        tokenizer.write(tmp_path)
        assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == "{{ messages }}"


CHAT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chatting(tmp_path_factory) -> HuggingfaceTokenizer:
    folder = tmp_path_factory.mktemp("chat")
    byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}', encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    return HuggingfaceTokenizer.load(str(folder / "tokenizer.json"), backend="huggingface")


class TestJinjaChatTemplate(ChatTemplateContract):
    """A template of the most common form, beside a tokenizer.json."""

    @pytest.fixture
    def tokenizer(self, chatting) -> HuggingfaceTokenizer:
        return chatting

    @pytest.fixture
    def template(self, tokenizer) -> ChatTemplate:
        assert tokenizer.chat_template is not None
        return tokenizer.chat_template

    @pytest.fixture
    def special(self) -> str:
        return "<|im_end|>"

    def test_the_token_behind_a_reply_ends_it(self, template):
        """The token that the template puts behind a reply ends a reply, though it is not end-of-text."""
        assert template.ends == {0, 2}

    def test_ids_are_those_of_transformers(self, tokenizer, template, tmp_path):
        """A conversation has the ids that ``apply_chat_template`` gives."""
        transformers = pytest.importorskip("transformers")
        tokenizer.write(tmp_path)
        loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
        talk = [("system", "be plain"), ("user", " Grüße, 東京 "), ("assistant", "words"), ("user", "more words")]
        conversation = [{"role": role, "content": text} for role, text in talk]
        expected = loaded.apply_chat_template(
            conversation, chat_template=CHAT, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert list(template.encode([ChatMessage(MessageRole(role), text) for role, text in talk])) == expected

    def test_private_marks_in_a_message_stand_for_no_token(self, tokenizer, template):
        """The marks that stand for special tokens inside the adapter mean nothing in a message."""
        ids = template.encode([ChatMessage(MessageRole.USER, "\ue0000\ue001 and \ue000x")])
        assert tokenizer.decode(ids).count("\N{REPLACEMENT CHARACTER}") == 2

    def test_a_conversation_that_the_template_refuses_is_an_error(self, tokenizer, tmp_path):
        """The words of a template that raises are in the sentence."""
        byte_level().save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}", encoding="utf-8")
        strict = HuggingfaceTokenizer.load(str(tmp_path / "tokenizer.json"), backend="huggingface").chat_template
        assert strict.ends == {0}
        with pytest.raises(DataError, match="does not accept this conversation: no system role"):
            strict.encode([ChatMessage(MessageRole.SYSTEM, "a")])

    def test_a_tokenizer_without_a_template_says_so(self, trained):
        """A tokenizer that was trained here has no template."""
        assert trained.chat_template is None


class TestForwardedChatTemplate(TestJinjaChatTemplate):
    """The template of a tokenizer within a wrapper."""

    @pytest.fixture
    def tokenizer(self, chatting) -> ForwardingTokenizer:
        return ForwardingTokenizer(chatting)

    def test_a_template_is_taken_and_written(self, tokenizer, tmp_path):
        """Another template is asked of the same wrapper, is written with the tokenizer, and changes no other one."""
        other = tokenizer.with_template(TemplateChoice("{{ 'new' }}", {}, date(2024, 7, 26)))
        other.write(tmp_path)
        assert type(other) is ForwardingTokenizer
        assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == "{{ 'new' }}"
        ids = list(other.chat_template.encode([ChatMessage(MessageRole.USER, "a")]))
        assert ids == tokenizer.encode(["new"]).ids.tolist()
        assert tokenizer.chat_template is tokenizer.inner.chat_template

    def test_special_tokens_are_written_out(self, tokenizer):
        """The names of special ids are those of the tokenizer inside."""
        assert tokenizer.decode_all([0, 1]) == "<|endoftext|><|im_start|>"

    def test_a_tokenizer_that_takes_no_template_says_so(self):
        """The wrapper has no ability that the tokenizer inside lacks."""
        plain = ForwardingTokenizer(MemoryTokenizer())
        assert plain.chat_template is None
        assert plain.decode_all([97, 256]) == "a"
        with pytest.raises(ConfigurationError, match="takes no chat template"):
            plain.with_template(TemplateChoice(None, {}, date(2024, 7, 26)))


class TestHuggingfaceTokenizerOfPieces(Loaded):
    """Pieces with a mark for the space, and bytes for what no piece spells, as in Llama 2 and Gemma."""

    def save(self, folder) -> Path:
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdeéf", "▁a", "▁ab", "cd"]
        core = Core(
            models.BPE(
                vocab={token: number for number, token in enumerate(tokens)},
                merges=[("▁", "a"), ("▁a", "b"), ("c", "d")],
                unk_token="<unk>",
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        core.normalizer = normalizers.Replace(" ", "▁")
        core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        core.add_special_tokens(["<unk>", "<s>", "</s>"])
        file = folder / "tokenizer.json"
        core.save(str(file))
        return file

    is_lossless: ClassVar[bool] = False  # a written-out mark for the space comes back as a space

    @pytest.mark.parametrize("text", ["ab é cdf", " ab  cd 東京\n", ""])
    def test_token_bytes_measure_pieces(self, tokenizer, text):
        """A piece stands for its own bytes, the mark for one space, and a byte token for one byte."""
        ids = tokenizer.encode([text]).ids
        assert tokenizer.token_bytes[ids].sum() == len(text.encode())
        assert tokenizer.decode(ids) == text


class TestHuggingfaceTokenizerOfScoredPieces(Loaded):
    """Scored pieces among which the special tokens lie, as in T5 and Albert."""

    is_lossless: ClassVar[bool] = False
    reads_specials_alike: ClassVar[bool] = False

    def save(self, folder) -> Path:
        named = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("<s>", 0.0)]
        letters = [(letter, -5.0) for letter in "▁abcdefghijklmnopqrstuvwxyz<>/|[]"]
        words = [("▁plain", -1.0), ("▁words", -1.0), ("▁a", -2.0), ("pad", -2.0)]
        core = Core(models.Unigram([*named, *letters, *words], unk_id=2))
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        core.decoder = decoders.Metaspace(prepend_scheme="always")
        core.add_special_tokens(["<pad>", "</s>", "<unk>", "<s>", "<extra>"])
        core.add_tokens(["fox"])
        template = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
        core.post_processor = template
        core.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "pad_token": "<pad>"}))
        return folder / "tokenizer.json"

    def test_a_special_token_in_a_text_is_its_letters(self, tokenizer):
        """The names of special tokens are split like other text, as by SentencePiece, and other ids stay."""
        ids = tokenizer.encode(["a <pad>b", "a fox", "<extra>"])
        shown = [tokenizer.decode_all(each.tolist()) for each in ids]
        assert shown == ["a <pad>b", "a fox", "<extra>"]
        assert not set(ids.ids.tolist()) & {0, 1, 2, 3}
        assert len(list(ids)[1]) == 3


class TestHuggingfaceTokenizerOfWords(Loaded):
    """Whole words in lower case, as in BERT: neither lossless nor without unknown words."""

    is_lossless: ClassVar[bool] = False

    def save(self, folder) -> Path:
        tokens = ["[UNK]", "[SEP]", "<eos>", "plain", "word", "##s", "<", ">", "[", "]", "e", "##e"]
        core = Core(models.WordPiece(vocab={token: number for number, token in enumerate(tokens)}, unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer()
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece()
        core.add_special_tokens(["[UNK]", "[SEP]", "<eos>"])
        file = folder / "tokenizer.json"
        core.save(str(file))
        return file

    def test_token_bytes_leave_the_mark_of_a_part_out(self, tokenizer):
        """The mark that a piece continues a word is no text."""
        assert tokenizer.token_bytes[tokenizer.encode(["words plain"]).ids].tolist() == [4, 1, 5]


def byte_level(*specials: str) -> Core:
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(specials or ["<|endoftext|>"]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([text for texts in CORPUS.values() for text in texts], trainer)
    return core
