"""Records of the usual forms become conversations, and conversations become text and back."""

from __future__ import annotations

import json

import pytest

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import (
    ChatMessage,
    Conversation,
    MessageRole,
    ToolCall,
    completion_from,
    completion_of,
    completion_text,
    conversation_from,
    conversation_of,
    conversation_text,
    plain_text,
    unused_in_conversation,
)

USER, ASSISTANT, SYSTEM, TOOL = MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SYSTEM, MessageRole.TOOL
PAIR = (ChatMessage(USER, "a"), ChatMessage(ASSISTANT, "b"))
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"messages": json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"from": "model", "value": "b"}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"instruction": "a", "input": "", "output": "b"},
        {"messages": None, "instruction": "a", "output": "b"},
    ],
)
def test_each_form_is_the_same_conversation(record):
    """The names of OpenAI and of ShareGPT, and instructions, give the same messages."""
    assert conversation_of(record) == Conversation(PAIR)


def test_a_prompt_is_context_and_its_completion_is_trained_on():
    """Replies in a prompt of messages are no targets, unlike those of the completion."""
    record = {
        "prompt": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "a"}],
        "completion": [{"role": "assistant", "content": "b"}],
    }
    assert [each.is_trained for each in conversation_of(record).messages] == [False, False, True]
    assert [each.text for each in conversation_of({"prompt": "a", "completion": "b"}).messages] == ["a", "b"]


def test_an_input_follows_its_instruction():
    """Instruction and input are one message, a paragraph each, after the history of earlier pairs."""
    record = {"instruction": "Add.", "input": "1 + 1", "output": "2", "history": [["a", "b"]]}
    assert [each.text for each in conversation_of(record).messages] == ["a", "b", "Add.\n\n1 + 1", "2"]


def test_system_and_tools_belong_to_any_form():
    """A field system is the first message unless there is one, and tools may be text in JSON."""
    found = conversation_of({"system": "s", "tools": json.dumps(TOOLS), "prompt": "a", "completion": "b"})
    assert (found.messages[0], found.tools) == (ChatMessage(SYSTEM, "s"), tuple(TOOLS))
    own = [{"role": "developer", "content": "own"}, {"role": "user", "content": "a"}]
    assert conversation_of({"system": "s", "messages": own}).messages[0] == ChatMessage(SYSTEM, "own")


def test_tool_calls_reasoning_and_weights_are_read():
    """Arguments in JSON become an object, as templates expect, and names and ids are those of the record."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    record = {
        "messages": [
            {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [call], "weight": 0},
            {"role": "tool", "content": "2", "name": "add", "tool_call_id": "c1"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 2}}'},
        ]
    }
    assert conversation_of(record).messages == (
        ChatMessage(ASSISTANT, "", reasoning="r", tool_calls=(ToolCall("add", {"x": 1}, "c1"),), is_trained=False),
        ChatMessage(TOOL, "2", name="add", tool_call_id="c1"),
        ChatMessage(ASSISTANT, "", tool_calls=(ToolCall("add", {"x": 2}),)),
    )


@pytest.mark.parametrize(
    "mark",
    [
        *({"weight": 0}, {"weight": 0.0}, {"train": False}, {"training": False}, {"trainable": 0}, {"loss": False}),
        *({"train_on_turn": False}, {"masked": True}),
    ],
)
def test_marks_of_other_programs_say_that_a_reply_is_not_trained_on(mark):
    """Each name that is in use marks the first reply, and the other value of it does not."""
    (name, value), said = next(iter(mark.items())), {"role": "assistant", "content": "b"}
    record = {"messages": [{**said, **mark}, {**said, name: not value}, said]}
    assert [each.is_trained for each in conversation_of(record).messages] == [False, True, True]


@pytest.mark.parametrize("mask", [[0, 0, 0, 1], [0, 1], [False, True]])
def test_a_mask_of_a_record_counts_its_messages_or_its_replies(mask):
    """A list for all messages and one for the replies alone mean the same, and a system message changes neither."""
    record = {"messages": [{"role": role, "content": "a"} for role in ("user", "assistant") * 2], "mask": "User"}
    found = conversation_of({**record, "system": "s", "loss_mask": mask}).messages
    assert [each.is_trained for each in found if each.is_reply] == [False, True]


@pytest.mark.parametrize(
    "said", [{"text": "a"}, {"parts": [{"text": "a"}]}, {"parts": ["a"]}, {"content": None, "text": "a"}]
)
def test_the_content_of_a_message_has_several_names(said):
    """A text under another name is the text of the message."""
    found = conversation_of({"messages": [{"role": "user", **said}, {"role": "assistant", "content": "b"}]})
    assert found.messages == PAIR


def test_prompts_of_the_system_and_tools_have_several_places():
    """Parts of a text, other names of fields and tools in the system message are read as the usual fields are."""
    pair = {"prompt": "a", "completion": "b"}
    for field in ({"system": ["s"]}, {"system": [{"type": "text", "text": "s"}]}, {"system_prompt": "s"}):
        assert conversation_of({**pair, **field}).messages[0] == ChatMessage(SYSTEM, "s")
    message = {"role": "system", "content": "s", "tools": json.dumps(TOOLS)}
    assert conversation_of({"messages": [message]}).tools == tuple(TOOLS)
    assert conversation_of({**pair, "functions": [TOOLS[0]["function"]]}).tools == tuple(TOOLS)


def test_a_call_may_be_the_only_one_of_a_message():
    """The older form of a call is one of the list."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"x": 1}'}}
    assert conversation_of({"messages": [call]}).messages[0].tool_calls == (ToolCall("add", {"x": 1}),)


def test_fields_that_are_not_used_are_named():
    """Each field of a record, a message or a call without a meaning is named once, and an empty one is not."""
    call = {"name": "add", "arguments": {}, "cost": 1}
    message = {"role": "assistant", "value": "b", "tool_calls": [call], "who": "me", "refusal": None, "text": "c"}
    record = {"id": 3, "messages": [message, message], "output": "d", "system": "s", "prompt": None}
    wanted = ["id", "output", "messages[].who", "messages[].text", "messages[].tool_calls[].cost"]
    assert unused_in_conversation(record) == wanted
    assert unused_in_conversation({**record, "messages": json.dumps(record["messages"])}) == wanted
    own = {"messages": [{"role": "system", "content": "own"}], "system": "s"}
    assert unused_in_conversation(own) == ["system"]


def test_a_conversation_as_text_is_read_back():
    """Nothing of a conversation is lost in its text, and the order of the members of tools and arguments is kept."""
    call = ToolCall("add", {"z": 1, "a": "ü"}, "c1")
    messages = (
        ChatMessage(SYSTEM, "s"),
        ChatMessage(USER, "a"),
        ChatMessage(ASSISTANT, "", reasoning="r", tool_calls=(call,), is_trained=False),
        ChatMessage(TOOL, "2", name="add", tool_call_id="c1"),
        ChatMessage(ASSISTANT, "b"),
    )
    conversation = Conversation(messages, tuple(TOOLS), {"enable_thinking": False})
    text = conversation_text(conversation)
    assert conversation_from(text) == conversation
    assert '{"z":1,"a":"ü"}' in text


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": "a"}, "none of the fields messages, conversations, prompt"),
        ({"messages": []}, "'messages' holds no message"),
        ({"messages": "no JSON"}, "'messages' holds text that is not JSON"),
        ({"messages": {"role": "user"}}, "holds an object, no list of messages"),
        ({"messages": ["a"]}, "message 0 is text, not an object"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "message 0 has the role 'bot'"),
        ({"messages": [{"role": "user", "content": 3}]}, "content of message 0 is a number"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "part of the type 'image_url'"),
        ({"messages": [{"role": "assistant", "content": ""}]}, "message 0, a reply, is empty"),
        ({"messages": [{"role": "user", "content": "a", "weight": 2}]}, "weight of message 0 is 2"),
        ({"messages": [{"role": "user", "content": None}]}, "message 0, of the role user, has no content"),
        (
            {"messages": [{"role": "user", "content": "a", "train": True}]},
            "to be trained on by its field 'train', but is",
        ),
        ({"messages": [{"role": "assistant", "content": "a", "train": 1, "loss": 0}]}, "train and loss of message 0"),
        ({"messages": [{"role": "assistant", "content": "a", "train_detail": [{}]}]}, "parts of a reply are not"),
        ({"messages": [{"role": "assistant", "content": "a", "mask": 1}]}, "the field 'mask', and it is not clear"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{"name": "f"}]}]}, "which only a reply has"),
        (
            {"messages": [{"role": "assistant", "content": "a"}], "loss_mask": [1, 0]},
            "'loss_mask' is no list with 1 or",
        ),
        ({"messages": [{"role": "user", "content": "a"}], "loss_mask": [1]}, "a message that is no reply"),
        ({"messages": [{"role": "assistant", "content": "a"}], "mask": "Assistant"}, "another role than the user's"),
        ({"messages": [{"role": "assistant", "content": "a"}], "system": 3}, "the field 'system' is a number"),
        (
            {"messages": [{"role": "user", "content": "a"}], "system": "a", "system_prompt": "b"},
            "'system_prompt' differ",
        ),
        ({"prompt": "a", "completion": "b", "tools": TOOLS, "functions": [{"name": "f"}]}, "in several places"),
        ({"prompt": "a", "completion": "b", "chat_template_kwargs": [1]}, "'chat_template_kwargs' holds a list"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "has no name and arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "tool_calls of message 0 are text"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [1]}, "'tools' holds no list of objects"),
        ({"prompt": "a"}, "'completion' is missing"),
        ({"instruction": "a"}, "'output' is missing"),
        ({"instruction": "a", "output": "b", "history": [["a"]]}, "'history' holds no list of pairs"),
    ],
)
def test_a_record_that_is_no_conversation_is_refused(record, words):
    """The message says which field or message is wrong."""
    with pytest.raises(DataError, match=words):
        conversation_of(record)


def test_a_field_of_another_name_holds_the_messages():
    """The setting for the field decides, also if usual fields are there."""
    record = {"talk": [{"role": "user", "content": "a"}], "messages": [{"role": "user", "content": "b"}]}
    assert conversation_of(record, "talk").messages == (ChatMessage(USER, "a"),)


def test_a_completion_as_text_is_read_back():
    """A prompt may be empty, and both texts are kept as they are."""
    assert completion_from(completion_text("", " b\n")) == ("", " b\n")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"prompt": "a"}, "'completion' is missing"),
        ({"prompt": [{"role": "user"}], "completion": "b"}, "holds messages, which need a chat template"),
        ({"instruction": "a", "output": "b"}, "set data.task=chat"),
        ({"prompt": 1, "completion": "b"}, "'prompt' holds a number"),
    ],
)
def test_a_record_without_prompt_and_completion_is_refused(record, words):
    """The message names the field, and the task that takes such a record if there is one."""
    with pytest.raises(DataError, match=words):
        completion_of(record)


def test_plain_text_is_what_is_said():
    """A tokenizer is trained on texts and reasoning, without roles and names of fields."""
    messages = (ChatMessage(USER, "a"), ChatMessage(ASSISTANT, "b", reasoning="r"))
    assert plain_text(Conversation(messages)) == "a\n\nr\n\nb"
