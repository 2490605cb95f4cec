"""The replies in a rendered conversation are found by rendering its beginnings."""

from __future__ import annotations

import re

import pytest

from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation_record import ChatMessage, Conversation, MessageRole, ToolCall
from holdfast.domain.training.reply_spans import ReplyMarks, render_replies, replies_to_train, without_reasoning

MARKS = ReplyMarks(re.compile(r"<end>|<all>|<again>"))


def talk(*texts: str) -> list[ChatMessage]:
    roles = (MessageRole.USER, MessageRole.ASSISTANT)
    return [ChatMessage(roles[number % 2], text) for number, text in enumerate(texts)]


def plain(messages, *, add_generation_prompt=False, **_) -> str:
    said = "".join(f"{message.role}: {message.text}<end>\n" for message in messages)
    return said + ("assistant: " if add_generation_prompt else "")


def replies_of(messages, render=plain, train_on="all_assistant", marks=MARKS) -> list[tuple[str, list[str], bool]]:
    chosen = replies_to_train(messages, train_on)
    found = render_replies(Conversation(tuple(messages)), chosen, render, marks)
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

    def forgets(messages, *, add_generation_prompt=False, **_):
        shortened = [
            ChatMessage(each.role, each.text[:1] if each.is_reply and each is not messages[-1] else each.text)
            for each in messages
        ]
        return plain(shortened, add_generation_prompt=add_generation_prompt)

    assert replies_of(talk("a", "bbb", "c", "ddd"), forgets) == [
        ("user: a<end>\nassistant: bbb<end>\n", ["bbb<end>"], True),
        ("user: a<end>\nassistant: b<end>\nuser: c<end>\nassistant: ddd<end>\n", ["ddd<end>"], True),
    ]


def test_a_token_after_the_last_reply_of_all_needs_no_second_text():
    """A special token that the template adds at the very end is no change of the reply, and the last reply has it."""

    def closes(messages, *, add_generation_prompt=False, **_):
        return plain(messages, add_generation_prompt=add_generation_prompt) + ("" if add_generation_prompt else "<all>")

    ((text, replies, _),) = replies_of(talk("a", "b", "c", "d"), closes)
    assert replies == ["b<end>", "d<end>\n<all>"]
    assert text.count("<all>") == 1


def test_a_reply_without_a_special_token_is_trained_on_up_to_the_end_of_the_text():
    """Without a token that ends the reply the caller is told so, and all of the rendered text is the reply."""

    def endless(messages, *, add_generation_prompt=False, **_):
        return plain(messages, add_generation_prompt=add_generation_prompt).replace("<end>", "")

    assert replies_of(talk("a", "b"), endless) == [("user: a\nassistant: b\n", ["b\n"], False)]


def test_a_reply_that_does_not_continue_its_beginning_is_refused_with_both_texts():
    """A template that writes the last message otherwise once the model has replied is refused, and it shows where."""

    def changes(messages, *, add_generation_prompt=False, **_):
        asked = plain(messages, add_generation_prompt=add_generation_prompt)
        return asked if add_generation_prompt else asked.replace("user: a", "user: b")

    messages = [ChatMessage(MessageRole.SYSTEM, "be brief"), *talk("a", "b")]
    with pytest.raises(DataError, match=r'message 2 otherwise.*asks with ".*user: a.*follows ".*user: b'):
        replies_of(messages, changes)


def test_a_reply_follows_what_the_template_asks_with():
    """A template that drops the system message once the model has replied is trained on as the model is asked."""

    def drops(messages, *, add_generation_prompt=False, **_):
        kept = messages if add_generation_prompt else messages[1:]
        return plain(kept, add_generation_prompt=add_generation_prompt)

    messages = [ChatMessage(MessageRole.SYSTEM, "be brief"), *talk("a", "b")]
    ((text, replies, _),) = replies_of(messages, drops)
    assert text == "system: be brief<end>\nuser: a<end>\nassistant: b<end>\n"
    assert replies == ["b<end>"]


def by_roles(messages, *, add_generation_prompt=False, **_) -> str:
    said = "".join(f"<{message.role}>{message.text}" for message in messages)
    return said + ("<assistant>" if add_generation_prompt else "")


ROLES = ReplyMarks(re.compile("<(user|assistant|tool)>"), "<user>", "<tool>")


def test_the_mark_of_the_next_role_ends_each_reply_of_a_template_without_another_end():
    """In the middle of a conversation and at its end a reply is trained on up to the mark that stops the model."""
    ((text, replies, is_ended),) = replies_of(talk("a", "b", "c", "d"), by_roles, marks=ROLES)
    assert (text, is_ended) == ("<user>a<assistant>b<user>c<assistant>d<user>", True)
    assert replies == ["b<user>", "d<user>"]


def test_the_mark_of_a_tool_ends_a_call():
    """A reply whose result follows ends with the mark of the tool, also as the last one of the conversation."""
    messages = [*talk("a", "b"), ChatMessage(MessageRole.TOOL, "c"), ChatMessage(MessageRole.ASSISTANT, "d")]
    ((_, replies, _),) = replies_of(messages, by_roles, marks=ROLES)
    assert replies == ["b<tool>", "d<user>"]
    called = [*talk("a"), ChatMessage(MessageRole.ASSISTANT, "f", tool_calls=(ToolCall("f"),))]
    assert replies_of(called, by_roles, marks=ROLES)[0][1] == ["f<tool>"]


def test_texts_are_compared_by_whole_special_tokens():
    """A token after the last reply that begins as the mark of the next role does is no change of the reply."""
    marks = ReplyMarks(re.compile(r"<\|(end|eot|user|assistant)\|>"))

    def closes(messages, *, add_generation_prompt=False, **_):
        said = "".join(f"<|{message.role}|>{message.text}<|end|>" for message in messages)
        return said + ("<|assistant|>" if add_generation_prompt else "<|eot|>")

    ((_, replies, _),) = replies_of(talk("a", "b", "c", "d"), closes, marks=marks)
    assert replies == ["b<|end|>", "d<|end|><|eot|>"]


def test_the_beginning_of_another_reply_is_no_part_of_a_reply():
    """A template that asks for a reply after each message, whether it is to or not, ends replies before that."""

    def asks_always(messages, **_):
        return "".join(f"<again>{each.role}: {each.text}<end>\n" for each in messages) + "<again>assistant: "

    ((_, replies, _),) = replies_of(talk("a", "b", "c", "d"), asks_always)
    assert replies == ["b<end>", "d<end>"]


def test_a_conversation_may_begin_with_a_reply():
    """The beginning of a reply that no message asks for is found in the conversation, and is not trained on."""
    first = ChatMessage(MessageRole.ASSISTANT, "welcome")
    ((text, replies, _),) = replies_of([first, *talk("a", "b")])
    assert text.startswith("assistant: welcome<end>\nuser: a<end>")
    assert replies == ["welcome<end>", "b<end>"]

    def asks_for_nothing(messages, **_):
        return "".join(f"{message.text}<end>" for message in messages)

    assert replies_of([first], asks_for_nothing)[0][1] == ["welcome<end>"]

    def asks_always(messages, **_):
        return "".join(f"<again>{each.role}: {each.text}<end>" for each in messages) + "<again>assistant: "

    assert replies_of([first], asks_always)[0][1] == ["welcome<end>"]

    def closes(messages, *, add_generation_prompt=False, **_):
        return plain(messages, add_generation_prompt=add_generation_prompt) + ("" if add_generation_prompt else "<all>")

    assert replies_of([first], closes)[0][1] == ["welcome<end>\n<all>"]
    called = ChatMessage(MessageRole.ASSISTANT, "", tool_calls=(ToolCall("add"),))
    with pytest.raises(DataError, match="begins with a reply, and the chat template has no text that asks for one"):
        replies_of([called], asks_for_nothing)


def thinking(messages, *, add_generation_prompt=False, **_) -> str:
    return plain(messages, add_generation_prompt=add_generation_prompt) + ("<think>\n" if add_generation_prompt else "")


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        (ChatMessage(MessageRole.ASSISTANT, "b", reasoning="because"), "because\n</think>\n\nb<end>"),
        (ChatMessage(MessageRole.ASSISTANT, "<think>why</think>b"), "why\n</think>\n\nb<end>"),
        (ChatMessage(MessageRole.ASSISTANT, "b"), "\n</think>\n\nb<end>"),
    ],
)
def test_a_thought_that_the_template_begins_is_written_in_the_reply(reply, wanted):
    """A template that asks with the beginning of a thought, and writes none in replies, is trained on to end it."""
    ((text, replies, _),) = replies_of([*talk("a"), reply], thinking)
    assert text.startswith("user: a<end>\nassistant: <think>\n")
    assert replies == [wanted]


def test_a_reply_without_reasoning_is_asked_for_without_it():
    """A template with two ways to ask is asked the way that fits the reply."""

    def both(messages, *, add_generation_prompt=False, reasons=True, **_):
        said = "".join(
            f"{each.role}: {'<think></think>' if each.is_reply and not each.reasoning else ''}{each.text}<end>\n"
            for each in messages
        )
        return said + (f"assistant: <think>{'x' if reasons else '</think>'}" if add_generation_prompt else "")

    assert replies_of(talk("a", "b"), both)[0][1] == ["b<end>"]


@pytest.mark.parametrize("text", ["be brief", "e"])
@pytest.mark.parametrize("role", [MessageRole.SYSTEM, MessageRole.USER])
def test_a_part_of_the_prompt_that_the_template_leaves_out_is_an_error(role, text):
    """A message before a reply is not lost, however short it is, and the message says which."""

    def forgets(messages, *, add_generation_prompt=False, **_):
        kept = [each for each in messages if not each.text.startswith(text)]
        return plain(kept, add_generation_prompt=add_generation_prompt)

    messages = [ChatMessage(role, text), *talk("hear me", "b")]
    with pytest.raises(DataError, match=f"has a text in message 0, of the role {role}, that the chat template leaves"):
        replies_of(messages, forgets)


def test_a_part_of_the_prompt_that_comes_too_late_is_an_error():
    """A system message that the template writes only behind the first reply was no part of what that answers."""

    def late(messages, *, add_generation_prompt=False, **_):
        system, others = messages[0], list(messages[1:])
        users = [place for place, each in enumerate(others) if each.role is MessageRole.USER]
        return plain(
            [*others[: users[0]], system, *others[users[0] :]] if users else others,
            add_generation_prompt=add_generation_prompt,
        )

    first = [ChatMessage(MessageRole.SYSTEM, "be brief"), ChatMessage(MessageRole.ASSISTANT, "welcome")]
    with pytest.raises(
        DataError, match="has a text in message 0, of the role system, that the chat template leaves out"
    ):
        replies_of([*first, *talk("a", "b")], late)


def test_tools_that_the_template_leaves_out_are_an_error():
    """The name of a tool must be in the text, and so must each further field that is no word of the schema."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "cost": "much"}}
    conversation = Conversation(tuple(talk("a", "b")), (tool,))

    def names(messages, *, tools=(), **options):
        return "".join(each["function"]["name"] for each in tools) + plain(messages, **options)

    with pytest.raises(DataError, match="a tool whose name the chat template leaves out"):
        render_replies(conversation, [1], plain, MARKS)
    with pytest.raises(DataError, match="a tool whose cost the chat template leaves out"):
        render_replies(conversation, [1], names, MARKS)
    tool["function"].pop("cost")
    assert render_replies(conversation, [1], names, MARKS)


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

    def calls_only(messages, *, add_generation_prompt=False, **_):
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
