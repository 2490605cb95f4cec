"""The replies in a rendered conversation are found by rendering its beginnings."""

from __future__ import annotations

import re

import pytest

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation import ChatMessage, Conversation, MessageRole, ToolCall
from holdfast.domain.training.reply_spans import render_replies, replies_to_train, without_reasoning

SPECIAL = re.compile(r"<end>|<all>")


def talk(*texts: str) -> list[ChatMessage]:
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    return [ChatMessage(roles[number % 2], text) for number, text in enumerate(texts)]


def plain(messages, *, add_generation_prompt=False) -> str:
    said = "".join(f"{message.role}: {message.text}<end>\n" for message in messages)
    return said + ("assistant: " if add_generation_prompt else "")


def replies_of(messages, render=plain, train_on="all_assistant") -> list[tuple[str, list[str], bool]]:
    found = render_replies(messages, replies_to_train(messages, train_on), render, SPECIAL)
    return [(each.text, [each.text[begin:end] for begin, end in each.spans], each.is_ended) for each in found]


def test_a_reply_is_what_follows_its_beginning_and_ends_with_a_special_token():
    """The reply begins after the generation prompt, and the white space after its last special token is no part."""
    assert replies_of(talk("a", "b")) == [("user: a<end>\nassistant: b<end>\n", ["b<end>"], True)]


def test_all_replies_of_a_template_that_keeps_its_beginnings_are_in_one_text():
    """Two replies are two spans of one text, in order."""
    (found,) = replies_of(talk("a", "b", "c", "d"))
    assert found[1] == ["b<end>", "d<end>"]


def test_only_the_last_reply_is_trained_on():
    """With last_assistant earlier replies are part of the context alone."""
    assert replies_of(talk("a", "b", "c", "d"), train_on="last_assistant")[0][1] == ["d<end>"]


def test_messages_after_the_last_reply_are_left_out():
    """A conversation that ends with the user is the same document as without that message."""
    assert replies_of(talk("a", "b", "c")) == replies_of(talk("a", "b"))


def test_a_template_that_rewrites_earlier_replies_needs_a_text_for_each():
    """Each reply is trained on once, in the text in which it is the last one, after the history as rendered then."""

    def forgets(messages, *, add_generation_prompt=False):
        shortened = [ChatMessage(each.role, each.text if each is messages[-1] else each.text[:1]) for each in messages]
        return plain(shortened, add_generation_prompt=add_generation_prompt)

    assert replies_of(talk("a", "bbb", "c", "ddd"), forgets) == [
        ("user: a<end>\nassistant: bbb<end>\n", ["bbb<end>"], True),
        ("user: a<end>\nassistant: b<end>\nuser: c<end>\nassistant: ddd<end>\n", ["ddd<end>"], True),
    ]


def test_a_token_after_the_last_reply_of_all_needs_no_second_text():
    """A special token that the template adds at the very end is no change of the reply, and the last reply has it."""

    def closes(messages, *, add_generation_prompt=False):
        return plain(messages, add_generation_prompt=add_generation_prompt) + ("" if add_generation_prompt else "<all>")

    ((text, replies, _),) = replies_of(talk("a", "b", "c", "d"), closes)
    assert replies == ["b<end>", "d<end>\n<all>"]
    assert text.count("<all>") == 1


def test_a_reply_without_a_special_token_is_trained_on_up_to_the_end_of_the_text():
    """Without a token that ends the reply the caller is told so, and all of the rendered text is the reply."""

    def endless(messages, *, add_generation_prompt=False):
        return plain(messages, add_generation_prompt=add_generation_prompt).replace("<end>", "")

    assert replies_of(talk("a", "b"), endless) == [("user: a\nassistant: b\n", ["b\n"], False)]


def test_a_reply_that_does_not_continue_its_beginning_is_refused_with_both_texts():
    """A template that drops the system message once the model has replied is refused, and the message shows where."""

    def drops(messages, *, add_generation_prompt=False):
        kept = messages if add_generation_prompt else messages[1:]
        return plain(kept, add_generation_prompt=add_generation_prompt)

    messages = [ChatMessage(MessageRole.SYSTEM, "be brief"), *talk("a", "b")]
    with pytest.raises(DataError, match=r'message 2 otherwise.*asks with "system: be brief.*follows "user: a'):
        replies_of(messages, drops)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (ChatMessage(MessageRole.ASSISTANT, "b", reasoning="because"), "reasoning in message 1"),
        (ChatMessage(MessageRole.ASSISTANT, "", tool_calls=(ToolCall("add"),)), "calls a tool in message 1"),
    ],
)
def test_a_part_of_a_reply_that_the_template_leaves_out_is_an_error(reply, words):
    """Nothing that a reply says is left out of training without a word."""
    with pytest.raises(DataError, match=words):
        replies_of([*talk("a"), reply])


def test_a_text_that_the_template_leaves_out_is_an_error():
    """A template that writes only the call of a tool does not lose the text beside it silently."""

    def calls_only(messages, *, add_generation_prompt=False):
        said = [f"{each.role}: {each.tool_calls[0].name if each.tool_calls else each.text}<end>\n" for each in messages]
        return "".join(said) + ("assistant: " if add_generation_prompt else "")

    reply = ChatMessage(MessageRole.ASSISTANT, "I will add.", tool_calls=(ToolCall("add"),))
    with pytest.raises(DataError, match="text in message 1 that the chat template leaves out beside the call"):
        replies_of([*talk("a"), reply], calls_only)


@pytest.mark.parametrize("messages", [talk("a"), [ChatMessage(MessageRole.ASSISTANT, "b", is_trained=False)]])
def test_a_conversation_without_a_reply_to_train_on_is_refused(messages):
    """A conversation of the user alone, or with replies that are not trained on, is an error."""
    with pytest.raises(DataError, match="has no reply of the assistant to train on"):
        replies_of(messages)


def test_reasoning_is_dropped_from_fields_and_texts():
    """Neither the field nor a <think> before the text is left, and the messages of the user are not touched."""
    messages = (
        ChatMessage(MessageRole.USER, "<think>mine</think>"),
        ChatMessage(MessageRole.ASSISTANT, "\n<think>\nlong\n</think>\n\nb", reasoning="also"),
    )
    asked, said = without_reasoning(Conversation(messages)).messages
    assert (asked.text, said.text, said.reasoning) == ("<think>mine</think>", "b", None)
