"""Special tokens around documents, as the post-processor of a tokenizer has them."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, processors
from transformers import AutoTokenizer

from holdfast.adapters.document_encoder.completion import CompletionDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.tokenizer.document_frame import leave_out_suffix
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.bootstrap.stages.identify.document_encoder import with_chat_template
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole
from holdfast.ports.transform import Record
from tests.support.small_tokenizers import small_tokenizer, write_tokenizer

NAMES = ("<s>", "</s>", "[CLS]", "[SEP]")
TEXT = "the model reads text"


def core_with(single=None, processor=None):
    core = small_tokenizer("gpt-2")
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    ids = {name: core.token_to_id(name) for name in NAMES}
    if single is not None:
        named = [(name, number) for name, number in ids.items() if name in single]
        core.post_processor = processors.TemplateProcessing(single, special_tokens=named)
    elif processor is not None:
        core.post_processor = processor(ids)
    return core, ids


def tokenizer_of(core, folder, *, add_bos="auto", report=lambda _: None, **fields):
    folder.mkdir(exist_ok=True)
    write_tokenizer(core, folder, **{"eos_token": "</s>", "bos_token": "<s>"} | fields)
    return HuggingfaceTokenizer.load(
        str(folder / "tokenizer.json"), add_bos=add_bos, backend="huggingface", report=report
    )


def auto_ids(tokenizer, folder):
    """Return the ids that AutoTokenizer gives ``TEXT`` with the files that ``tokenizer`` writes."""
    folder.mkdir()
    tokenizer.write(folder)
    return AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]


def roberta(ids):
    return processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]))


def after_bytes(ids):
    template = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", ids["<s>"])])
    return processors.Sequence([processors.ByteLevel(), template])


@pytest.mark.parametrize(
    ("single", "processor", "before", "after"),
    [
        (None, None, (), ("</s>",)),
        ("<s> $A", None, ("<s>",), ("</s>",)),
        (None, after_bytes, ("<s>",), ("</s>",)),
        ("$A </s>", None, (), ("</s>",)),
        ("<s> $A </s>", None, ("<s>",), ("</s>",)),
        (None, roberta, ("<s>",), ("</s>",)),
        ("[CLS] $A [SEP]", None, ("[CLS]",), ("[SEP]", "</s>")),
    ],
)
def test_documents_begin_and_end_as_the_post_processor_has_them(tmp_path, single, processor, before, after):
    """A document has the tokens of the post-processor around it, and end-of-text once; a prompt is part of one."""
    core, ids = core_with(single, processor)
    tokenizer = tokenizer_of(core, tmp_path)
    plain = core.encode(TEXT, add_special_tokens=False).ids
    expected = [*(ids[name] for name in before), *plain, *(ids[name] for name in after)]
    assert TextDocumentEncoder(tokenizer).encode([Record(TEXT), Record("")]).ids.tolist() == [
        *expected,
        *(ids[name] for name in (*before, *after)),
    ]
    pair = Record(json.dumps({"prompt": TEXT[:9], "completion": TEXT[9:]}))
    encoded = CompletionDocumentEncoder(tokenizer).encode([pair])
    prompt = [*(ids[name] for name in before), *core.encode(TEXT[:9], add_special_tokens=False).ids]
    assert encoded.ids.tolist()[: len(prompt)] == prompt
    assert encoded.ids.tolist()[-len(after) :] == [ids[name] for name in after]
    assert encoded.loss_mask.tolist() == [number >= len(prompt) for number in range(len(encoded.ids))]
    whole = auto_ids(tokenizer, tmp_path / "written")
    assert whole == expected[: len(whole)] == core.encode(TEXT).ids


@pytest.mark.parametrize("single", ["<s>", "<s> </s>", "$A $A", "<s> $A $A", "$A <s> $A"])
def test_a_post_processor_that_changes_the_text_is_refused(tmp_path, single):
    """One that leaves the text out or repeats it is refused, and add_bos replaces it."""
    core, ids = core_with(single)
    with pytest.raises(ConfigurationError, match=r"more than put tokens around a text: set tokenizer.add_bos=false"):
        tokenizer_of(core, tmp_path)
    mended = tokenizer_of(core, tmp_path, add_bos=False)
    plain, _ = core_with("$A")
    assert mended.encode([TEXT]).ids.tolist() == plain.encode(TEXT).ids
    assert list(mended.around[1]) == [ids["</s>"]]


@pytest.mark.parametrize(
    ("single", "add_bos", "before"),
    [("$A", True, ("<s>",)), ("<s> $A </s>", True, ("<s>",)), ("[CLS] $A [SEP]", False, ()), ("<s> $A", False, ())],
)
def test_a_chosen_beginning_is_in_the_files_too(tmp_path, single, add_bos, before):
    """With ``add_bos`` chosen, AutoTokenizer begins a text with the files that are written as training does."""
    core, ids = core_with(single)
    tokenizer = tokenizer_of(core, tmp_path, add_bos=add_bos, add_bos_token=not add_bos)
    plain = core.encode(TEXT, add_special_tokens=False).ids
    after = [ids["</s>"]] if single.endswith("</s>") else []
    assert list(tokenizer.around[0]) == [ids[name] for name in before]
    assert list(tokenizer.around[1]) == [ids["</s>"]]
    assert auto_ids(tokenizer, tmp_path / "written") == [*tokenizer.around[0], *plain, *after]


@pytest.mark.parametrize(("single", "before"), [("<s> $A </s>", ["<s>"]), ("$A </s>", []), ("<s> $A", ["<s>"])])
def test_a_text_to_continue_is_not_ended(tmp_path, single, before):
    """Without the suffix AutoTokenizer begins a text as a document begins, and puts nothing after it."""
    core, ids = core_with(single)
    tokenizer = tokenizer_of(core, tmp_path)
    tokenizer.write(tmp_path)
    leave_out_suffix(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)(TEXT)["input_ids"]
    assert theirs == [*(ids[name] for name in before), *core.encode(TEXT, add_special_tokens=False).ids]


def test_a_configuration_that_says_otherwise_is_told(tmp_path):
    """AutoTokenizer obeys the post-processor and not ``add_bos_token``, so this does, and says it with the remedy."""
    told = []
    core, _ = core_with("[CLS] $A")
    tokenizer = tokenizer_of(core, tmp_path, add_bos_token=False, report=told.append)
    theirs = AutoTokenizer.from_pretrained(tmp_path)(TEXT)["input_ids"]
    assert [*tokenizer.around[0], *tokenizer.encode([TEXT]).ids.tolist()] == theirs
    assert [line for line in told if "tokenizer.add_bos=false" in line]
    told.clear()
    tokenizer_of(core, tmp_path, add_bos_token=True, report=told.append)
    assert not [line for line in told if "add_bos" in line]


def test_what_is_around_documents_is_part_of_the_fingerprint(tmp_path):
    """Without tokens around documents the fingerprint is that of earlier versions, and with them another one."""
    plain, begun = core_with()[0], core_with("<s> $A")[0]
    prints = [
        tokenizer_of(core, tmp_path, add_bos=adds).fingerprint() for core in (plain, begun) for adds in ("auto", False)
    ]
    assert [each == prints[0] for each in prints] == [True, True, False, True]


def test_a_beginning_that_there_is_not_is_refused(tmp_path):
    """``add_bos=true`` needs a ``bos_token``, and a post-processor that cuts a text cannot be followed."""
    core, _ = core_with()
    with pytest.raises(ConfigurationError, match="bos_token"):
        tokenizer_of(core, tmp_path, add_bos=True, bos_token=None)
    core, _ = core_with("$A </s> $A")
    with pytest.raises(ConfigurationError, match=r"add_bos=false"):
        tokenizer_of(core, tmp_path)


def test_a_stock_template_begins_as_a_document_does(tmp_path):
    """A conversation under a template of ours begins with the tokenizer's own beginning of text, once."""
    words = ["data.path=x.jsonl", "data.task=chat", "data.chat.template=plain"]
    data = load_settings([], words, {}).settings.data
    core, ids = core_with("<s> $A")
    for add_bos, begin in (("auto", [ids["<s>"]]), (False, [])):
        tokenizer = with_chat_template(tokenizer_of(core, tmp_path, add_bos=add_bos), data)
        found = tokenizer.chat_template.encode([ChatMessage(MessageRole.USER, "hello")])
        assert [number for number in found if number in ids.values()] == begin
        assert found[: len(begin)] == begin
