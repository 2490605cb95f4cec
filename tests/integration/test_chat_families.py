"""Conversations of many shapes are what transformers renders, in the templates of many families."""

from __future__ import annotations

import copy
import json
import string
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.formats.records import Fields
from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import conversation_from, conversation_of
from holdfast.domain.training.reply_spans import replies_to_train
from tests.support.chat_families import FAMILIES, SHAPES, family, named_tokens
from tests.support.chat_fixtures import byte_level

_WITHOUT_ENDS = ("falcon",)  # it has no special tokens in a conversation


@cache
def judge(name: str):
    """Return transformers' own tokenizer for the family ``name``."""
    transformers = pytest.importorskip("transformers")
    core, source = byte_level(FAMILIES[name]["special"]), FAMILIES[name]["template"]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, chat_template=source, **named_tokens(name))


def told(name: str, record, stop: int, **options) -> list[list[int]]:
    """Return the ids that transformers gives for the messages before ``stop``, with thinking and without."""
    messages = copy.deepcopy(record["messages"][:stop])
    found = []
    for as_text in (False, True):
        for message in messages:
            if "reasoning_content" in message:
                message["thinking"] = message["reasoning_content"]
            for call in message.get("tool_calls", ()):
                arguments = call["function"]["arguments"]
                if as_text and isinstance(arguments, dict):
                    call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
        for thinking in ({}, {"enable_thinking": False}):
            try:
                found.append(
                    judge(name).apply_chat_template(
                        messages, tools=record.get("tools"), tokenize=True, return_dict=False, **thinking, **options
                    )
                )
            except Exception:  # noqa: BLE001  of Jinja, or anything that the template does
                continue
    return found


def parts_before(record, stop: int) -> list[str]:
    said = [each["content"] for each in record["messages"][:stop] if each["role"] != "assistant"]
    return [*said, *(tool["function"]["name"] for tool in record.get("tools", ()))]


def squeezed(text: str) -> str:
    return "".join(text.split()).replace("\\", "")


def refusal_is_right(name: str, record, error: str) -> bool:
    """Return whether transformers refuses the conversation too, or leaves out what the message names."""
    messages = record["messages"]
    last = max(number for number, each in enumerate(messages) if each["role"] == "assistant")
    rendered = told(name, record, last + 1) if last else []
    if "does not accept" in error or "begins with a reply" in error:
        return (
            not told(name, record, last, add_generation_prompt=True)
            or not rendered
            or messages[0]["role"] == "assistant"
        )
    text = squeezed(judge(name).decode(rendered[-1])) if rendered else ""
    wanted = [*parts_before(record, last), *(each.get("reasoning_content", "") for each in messages)]
    wanted += ["They greet me." if "<think>" in str(messages) else ""]
    wanted += ["Oslo" if len(each.get("tool_calls", ())) > 1 else "" for each in messages]
    wanted += ["weather" for each in messages if each.get("tool_calls")]
    return any(squeezed(part) not in text for part in wanted)


def check(name: str, shape: str) -> str:
    """Check one conversation in one template; return why it is refused, or nothing."""
    record, tokenizer = SHAPES[shape], family(name)
    talk = conversation_from(Fields("text", task="chat").content_of(record))
    refused = ""
    try:
        (documents,) = tokenizer.chat_template.encode_training([talk])
    except DataError as error:
        refused = str(error)
    if refused:
        assert refusal_is_right(name, record, refused), refused
        return refused
    chosen = list(replies_to_train(talk.messages, "all_assistant"))
    runs = []
    for document in documents:
        edges = np.diff(np.concatenate([[0], document.loss_mask.astype(int), [0]]))
        runs += [
            (document, *pair) for pair in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)
        ]
    assert len(runs) == len(chosen)
    for number, (document, begin, end) in zip(chosen, runs, strict=True):
        message = talk.messages[number]
        reply = squeezed(tokenizer.decode_all(document.ids[begin:end]))
        for part in (
            message.reasoning or "",
            *message.text.split("</think>"),
            *(call.name for call in message.tool_calls),
        ):
            assert squeezed(part.replace("<think>", "")) in reply
        if name not in _WITHOUT_ENDS:
            assert int(document.ids[end - 1]) in tokenizer.chat_template.ends
        for part in parts_before(record, number):
            assert squeezed(part) in squeezed(tokenizer.decode_all(document.ids[:begin]))
        if number:
            # the white space at the end of a prompt may be another token than in the middle of a text
            prompts = [judge(name).decode(each) for each in told(name, record, number, add_generation_prompt=True)]
            assert judge(name).decode(document.ids[:begin]) in prompts
    if name != "deepseek_r1" and shape != "user_last":
        whole, ids = told(name, record, chosen[-1] + 1), documents[-1].ids.tolist()
        is_reordered = name == "mistral_system_last" or (name, shape) == ("harmony", "thought_calls")
        assert ids in whole or ids[:-1] in whole or is_reordered
    return ""


@pytest.mark.parametrize(
    ("name", "shape"), [("chatml", "turns"), ("glm4", "calls"), ("phi3", "turns"), ("harmony", "calls")]
)
def test_a_conversation_is_what_transformers_renders(name, shape):
    """Prompts, replies with their ends and ids are those of transformers."""
    assert check(name, shape) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_each_shape_is_what_transformers_renders_or_refused(name):
    """No part of a prompt is lost, each reply is trained on with its end, and the ids are those of transformers."""
    refused = {shape: error for shape in SHAPES if (error := check(name, shape))}
    assert not {"single", "turns", "same", "untrained", "space"} & set(refused)


@st.composite
def changed_records(draw):
    """Draw a record with one field more in one of its objects."""
    record = copy.deepcopy(draw(st.sampled_from([*SHAPES.values()])))
    places = [record, *record["messages"], *record.get("tools", ())]
    places += [tool["function"] for tool in record.get("tools", ())]
    calls = [call for message in record["messages"] for call in message.get("tool_calls", ())]
    target = draw(st.sampled_from([*places, *calls]))
    known = (
        "text",
        "parts",
        "system",
        "functions",
        "train",
        "mask",
        "loss_mask",
        "reasoning",
        "strict",
        "name",
        "weight",
    )
    name = draw(st.one_of(st.sampled_from(known), st.text(string.ascii_lowercase, min_size=4, max_size=8)))
    said = st.sampled_from(["zq-marked-qz", 0, 1, True, False, ["zq-marked-qz"], {"zq": "zq-marked-qz"}])
    before = copy.deepcopy(record)
    if name in target:
        return record, before, None
    target[name] = draw(said)
    return record, before, name


def is_accounted_for(record, before, name: str | None) -> bool:
    """Return whether the added field is refused, counted, or changes what is trained on."""
    if name is None or (found := trained_on(record)) is None:
        return True
    if any(each.split(".")[-1] == name for each in Fields("text", task="chat").unused_in(record)):
        return True
    # a mark may say what is so without it, what is no text is no thought, and many templates leave out names
    marks = ("weight", "train", "training", "trainable", "loss", "train_on_turn", "masked")
    return found != trained_on(before) or name in (*marks, "reasoning", "name")


def trained_on(record):
    """Return the ids and masks of the documents that ``record`` makes, None if it is refused."""
    try:
        documents = family("glm4").chat_template.encode_training([conversation_of(record)])
    except DataError:
        return None
    return [(each.ids.tolist(), each.loss_mask.tolist()) for some in documents for each in some]


@settings(deadline=None, max_examples=100)
@given(drawn=changed_records())
def test_each_field_is_used_refused_or_counted(drawn):
    """A field that is added anywhere in a record is never lost without a word."""
    assert is_accounted_for(*drawn)


@pytest.mark.slow
@settings(deadline=None, max_examples=2000)
@given(drawn=changed_records())
def test_each_of_many_fields_is_used_refused_or_counted(drawn):
    """The same holds for two thousand records."""
    assert is_accounted_for(*drawn)
