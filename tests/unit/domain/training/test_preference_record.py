"""Records of preferences in the forms that are in use."""

from __future__ import annotations

import pytest

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import MessageRole, conversation_of
from holdfast.domain.training.preference_record import preference_from, preference_of, preference_text

ASKED = {"role": "user", "content": "Hi"}
GOOD, BAD = {"role": "assistant", "content": "Hello."}, {"role": "assistant", "content": "What?"}
FORMS = {
    "texts": {"prompt": "Hi", "chosen": "Hello.", "rejected": "What?"},
    "question": {"question": "Hi", "chosen": "Hello.", "rejected": "What?"},
    "prompt with lists": {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
    "whole conversations": {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "prompt beside whole conversations": {"prompt": "Hi", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "messages with texts": {"messages": [ASKED], "chosen": "Hello.", "rejected": "What?"},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "Hi"}],
        "chosen": {"from": "gpt", "value": "Hello."},
        "rejected": {"from": "gpt", "value": "What?"},
    },
    "instruction": {"instruction": "Hi", "input": "", "chosen": "Hello.", "rejected": "What?"},
    "lists as JSON": {
        "chosen": '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]',
        "rejected": '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}]',
    },
}


def said(conversation):
    return [(message.role, message.text) for message in conversation.messages]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_preference(form):
    """All forms of a record give the two conversations, and they survive as text."""
    found = preference_of(FORMS[form])
    assert said(found.chosen) == [(MessageRole.USER, "Hi"), (MessageRole.ASSISTANT, "Hello.")]
    assert said(found.rejected) == [(MessageRole.USER, "Hi"), (MessageRole.ASSISTANT, "What?")]
    assert preference_from(preference_text(found)) == found


def test_system_and_tools_belong_to_both_conversations():
    """The fields of a record that are no reply are in front of both replies."""
    tools = [{"type": "function", "function": {"name": "search"}}]
    found = preference_of({**FORMS["texts"], "system": "Be kind.", "tools": tools})
    for side in (found.chosen, found.rejected):
        assert said(side)[0] == (MessageRole.SYSTEM, "Be kind.")
        assert list(side.tools) == tools


def test_messages_may_be_in_a_field_of_another_name():
    """The text field of the settings holds the messages before the replies."""
    found = preference_of({"dialog": [ASKED], "chosen": "Hello.", "rejected": "What?"}, "dialog")
    assert said(found.chosen) == said(conversation_of({"messages": [ASKED, GOOD]}))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"prompt": "Hi", "chosen": "Hello."}, "the field 'rejected' is missing"),
        ({"chosen": "Hello.", "rejected": "What?"}, "no message that the replies answer"),
        ({"prompt": "Hi", "chosen": "Hello.", "rejected": "Hello."}, "are equal, so neither is preferred"),
        ({"chosen": [ASKED, GOOD], "rejected": [{**ASKED, "content": "Ho"}, BAD]}, "before the last reply differ"),
        ({"chosen": [ASKED, GOOD, ASKED], "rejected": [ASKED, BAD]}, "'chosen' is no reply of the assistant"),
        ({"prompt": "Hi", "chosen": 5, "rejected": "What?"}, "'chosen' is neither a text nor a list"),
        ({"prompt": "Hi", "chosen": "Hello.", "rejected": [7]}, "message 0 is a number"),
        ({"messages": "Hi", "chosen": "Hello.", "rejected": "What?"}, "'messages' holds no list of messages"),
        ({"prompt": "Hi", "chosen": "Hello.", "rejected": ""}, "the field 'rejected' is empty"),
        ({"messages": [ASKED, GOOD], "chosen": "Hello.", "rejected": "What?"}, "which answer nothing then"),
    ],
)
def test_a_record_that_holds_no_preference_is_refused(record, reason):
    """The sentence names the field and what is wrong with it."""
    with pytest.raises(DataError, match=reason):
        preference_of(record)


@pytest.mark.parametrize("text", ['[{"word": "amber"}]', "[1, 2]", "[]", "[" * 100_000])
def test_a_reply_that_is_a_list_in_json_is_a_text(text):
    """Only a list of objects with roles is a list of messages, so a reply may be JSON."""
    found = preference_of({"prompt": "List the words as JSON.", "chosen": text, "rejected": "amber"})
    assert said(found.chosen)[-1] == (MessageRole.ASSISTANT, text)


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}", '{"chosen": 1, "rejected": 2}', "[" * 100_000])
def test_another_text_is_no_preference(text):
    """A text that was not written for a preference raises an error for a person."""
    with pytest.raises(DataError):
        preference_from(text)
