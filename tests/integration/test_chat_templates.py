"""The replies of conversations are trained on, and nothing else, with the stock templates of six families."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date

import pytest

from holdfast.adapters.tokenizer.stock_templates import STOCK_TEMPLATES
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.training.conversation_record import ChatMessage, Conversation, MessageRole, conversation_of
from holdfast.ports.tokenizer import TemplateChoice
from tests.support.chat_fixtures import (
    CONVERSATIONS,
    FOLDER,
    TEMPLATES,
    byte_level,
    conversation,
    expected,
    marked,
    templated,
)
from tests.support.command_line import ROOT, environment

DAY = date(2024, 7, 26)


def documents_of(template: str, talk: Conversation, train_on="all_assistant", **options: object) -> list[str]:
    tokenizer = templated(template)
    if options:
        tokenizer = tokenizer.with_template(TemplateChoice(None, options, DAY))
    (documents,) = tokenizer.chat_template.encode_training([talk], train_on)
    return [marked(tokenizer, each.ids.tolist(), each.loss_mask.tolist()) for each in documents]


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_exactly_the_expected_text_is_trained_on(template, name):
    """The documents of a conversation are those that were written by hand, or it is refused with those words."""
    wanted = expected(template)[name]
    if isinstance(wanted, str):
        with pytest.raises(DataError) as caught:
            documents_of(template, conversation(name))
        assert str(caught.value).startswith(wanted)
        return
    found = documents_of(template, conversation(name))
    assert len(found) == len(wanted)
    for document, text in zip(found, wanted, strict=True):
        if text.startswith("..."):
            assert document.endswith(text[3:])
            assert document.count("⟦") == text.count("⟦")
        else:
            assert document == text


@pytest.mark.parametrize("template", TEMPLATES)
def test_ids_are_those_of_transformers(template, tmp_path):
    """A conversation in one document has the ids that ``apply_chat_template`` gives for all of its messages."""
    transformers = pytest.importorskip("transformers")
    tokenizer = templated(template).with_template(TemplateChoice(None, {}, DAY))
    tokenizer.write(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    source = loaded.chat_template.replace('strftime_now("%Y-%m-%d")', '"2024-07-26"')
    source = source.replace('strftime_now("%d %b %Y")', '"26 Jul 2024"')
    messages = CONVERSATIONS["single"]["messages"]
    told = loaded.apply_chat_template(messages, chat_template=source, tokenize=True, return_dict=False)
    ((document,),) = templated(template).chat_template.encode_training([conversation("single")])
    assert document.ids.tolist() == told


@pytest.mark.parametrize("template", TEMPLATES)
def test_special_tokens_in_messages_stay_text(template):
    """A message full of the special tokens of all templates adds no special id, to the context or to a reply."""
    tokenizer = templated(template)
    harmless, hostile = (
        tokenizer.chat_template.encode_training([conversation(name)])[0][-1] for name in ("single", "hostile")
    )
    counts = [int((tokenizer.token_bytes[each.ids] == 0).sum()) for each in (harmless, hostile)]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_reply_begins_where_the_model_will_continue(template):
    """The ids before the first reply are those that the template gives for a prompt, so training and use agree."""
    tokenizer = templated(template)
    talk = conversation("single")
    ((document,),) = tokenizer.chat_template.encode_training([talk])
    begin = document.loss_mask.tolist().index(True)
    prompt = tokenizer.chat_template.encode(talk.messages[:1])
    if template in ("llama3", "gpt_oss"):  # these write the date of today, of another length of tokens
        assert tokenizer.decode_all(document.ids[:begin])[-20:] == tokenizer.decode_all(prompt)[-20:]
    else:
        assert document.ids[:begin].tolist() == list(prompt)


@pytest.mark.parametrize("template", ["llama3", "qwen3", "gpt_oss"])
def test_the_last_reply_alone_is_trained_on(template):
    """With last_assistant a conversation is one document, with its last reply and no other marked."""
    (document,) = documents_of(template, conversation("turns"), "last_assistant")
    assert document.count("⟦") == 1
    assert "2" in document.partition("⟦")[2]


def test_a_batch_is_its_conversations():
    """Conversations of different lengths and numbers of documents have alone what they have together."""
    template = templated("qwen3").chat_template
    talks = [conversation(name) for name in ("turns", "single", "reasoning_turns", "tools")]
    together = template.encode_training(talks)
    alone = [template.encode_training([talk])[0] for talk in talks]
    assert [len(each) for each in together] == [2, 1, 2, 2]
    assert [[d.ids.tolist() for d in each] for each in together] == [[d.ids.tolist() for d in each] for each in alone]


def test_options_of_the_template_decide_what_a_reply_is():
    """Without thinking Qwen3 asks with an empty thought, which then belongs to the prompt and is not trained on."""
    (document,) = documents_of("qwen3", conversation("single"), enable_thinking=False)
    assert document.endswith("assistant\n<think>\n\n</think>\n\n⟦Hello.<|im_end|>⟧\n")


def test_a_template_writes_the_date_of_the_settings():
    """A template with the current date writes the chosen day into conversations to train on."""
    tokenizer = templated("gpt_oss").with_template(TemplateChoice(None, {}, date(2031, 2, 3)))
    ((document,),) = tokenizer.chat_template.encode_training([conversation("single")])
    assert "Current date: 2031-02-03\n" in tokenizer.decode_all(document.ids)
    assert tokenizer.chat_template.fingerprint() != templated("gpt_oss").chat_template.fingerprint()
    plain = templated("chatml")
    same = plain.with_template(TemplateChoice(None, {}, date(2031, 2, 3)))
    assert same.chat_template.fingerprint() == plain.chat_template.fingerprint()


def test_a_token_across_the_beginning_of_a_reply_is_divided():
    """A reply that begins with white space is not merged with the prompt, as it is not when the model writes it."""
    tokenizer = templated("chatml")
    talk = conversation_of({"prompt": "Hi", "completion": "\n\nHello"})
    ((document,),) = tokenizer.chat_template.encode_training([talk])
    begin = document.loss_mask.tolist().index(True)
    assert tokenizer.decode_all(document.ids[:begin]).endswith("assistant\n")
    assert document.ids[:begin].tolist() == list(tokenizer.chat_template.encode(talk.messages[:1]))


def test_a_reply_without_a_special_token_ends_with_end_of_text():
    """A template whose replies no special token ends gets end-of-text after the last one, which is trained on."""
    source = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    source += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    tokenizer = templated("chatml", source)
    ((document,),) = tokenizer.chat_template.encode_training([conversation("turns")])
    text = marked(tokenizer, document.ids.tolist(), document.loss_mask.tolist())
    assert text == "user: One?\nassistant: ⟦1\n⟧user: Two?\nassistant: ⟦2\n<|endoftext|>⟧"


ROLES = (
    "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_end|>' }}{% endif %}"
)


def test_a_template_of_role_marks_ends_replies_with_the_mark_of_the_next_role():
    """The model is trained to write the mark of the user after each reply, and stops there when it is used."""
    tokenizer = templated("chatml", ROLES)
    ((document,),) = tokenizer.chat_template.encode_training([conversation("turns")])
    text = marked(tokenizer, document.ids.tolist(), document.loss_mask.tolist())
    assert text == "<|im_start|>One?<|im_end|>⟦1<|im_start|>⟧Two?<|im_end|>⟦2<|im_start|>⟧"
    assert int(document.ids[0]) in tokenizer.chat_template.ends


THOUGHTS = (
    "{% for m in messages %}{% set c = m.content %}{% set r = '' %}{% if '</think>' in c %}"
    "{% set r = c.split('</think>')[0].split('<think>')[-1] %}{% set c = c.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}{{ '<think>' + r + '</think>' }}{% endif %}"
    "{{ c + '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("name", ["thoughts", "chatml"])
def test_a_thought_in_a_text_is_one_whether_its_marks_are_special_tokens_or_not(name):
    """The block before a reply is trained on once, by the tokens that the template writes for it."""
    tokenizer = templated(name, THOUGHTS)
    talk = conversation_of({"prompt": "Say <think>", "completion": "<think>because</think>Hello"})
    ((document,),) = tokenizer.chat_template.encode_training([talk])
    text = marked(tokenizer, document.ids.tolist(), document.loss_mask.tolist())
    assert text.endswith("assistant\n⟦<think>because</think>Hello<|im_end|>⟧")
    thought = tokenizer.decode_all([document.ids[document.loss_mask][0]])
    assert (thought == "<think>") == (name == "thoughts")


@pytest.mark.parametrize(
    "written", ["+ t.function.arguments", "~ t.function.arguments", "+ (t.function.arguments | tojson)"]
)
def test_arguments_of_calls_are_json_in_every_template(written):
    """A template that takes the arguments of a call as text gets their text, and one that takes objects gets those."""
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + m.content }}{% for t in m.tool_calls or [] %}"
        f"{{{{ 'CALL ' {written} }}}}{{% endfor %}}{{{{ '<|im_end|>' }}}}{{% endfor %}}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"
    )
    tokenizer = templated("chatml", source)
    call = {"function": {"name": "CALL", "arguments": {"a": "é", "b": True}}}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    ((document,),) = tokenizer.chat_template.encode_training([conversation_of({"messages": messages})])
    text = marked(tokenizer, document.ids.tolist(), document.loss_mask.tolist())
    assert text.endswith('⟦CALL {"a": "é", "b": true}<|im_end|>⟧')


def test_conversations_with_tools_have_the_template_for_tools(tmp_path):
    """Of two templates that of tools writes the conversations that have some, also after the tokenizer was written."""
    from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer

    sources = {"default": (FOLDER / "chatml.jinja").read_text(encoding="utf-8")}
    sources["tool_use"] = "{{ tools | tojson }}" + sources["default"]
    config = {"eos_token": "<|endoftext|>", "chat_template": [{"name": n, "template": t} for n, t in sources.items()]}
    beside = {"tokenizer_config.json": json.dumps(config).encode()}
    serialized = byte_level(("<|endoftext|>", "<|im_start|>", "<|im_end|>")).to_str()
    tokenizer = HuggingfaceTokenizer(serialized, end_of_text="<|endoftext|>", beside=beside, backend="huggingface")
    tokenizer.with_template(TemplateChoice(None, {}, DAY)).write(tmp_path)
    loaded = HuggingfaceTokenizer.load(str(tmp_path / "tokenizer.json"), backend="huggingface")
    talk = conversation_of({**CONVERSATIONS["single"], "tools": [{"name": "add"}]})
    found = []
    for each in (tokenizer, loaded):
        ((document,), (plain,)) = each.chat_template.encode_training([talk, conversation("single")])
        found.append(each.decode_all(document.ids))
        assert each.decode_all(plain.ids).startswith("<|im_start|>user")
    assert found[0] == found[1]
    assert found[0].startswith('[{"name": "add"}]<|im_start|>user')


@pytest.mark.parametrize("stock", STOCK_TEMPLATES)
def test_stock_templates_train_each_reply_with_its_end(stock):
    """The templates that need no file mark the replies of a conversation, each up to a special token."""
    source, tokens = STOCK_TEMPLATES[stock]
    tokenizer = templated("chatml").with_template(TemplateChoice(source, {}, DAY, tokens))
    ((document,),) = tokenizer.chat_template.encode_training([conversation("turns")])
    end = "<|im_end|>" if stock == "chatml" else "<|endoftext|>"
    text = marked(tokenizer, document.ids.tolist(), document.loss_mask.tolist())
    replies = [part.partition("⟧")[0] for part in text.split("⟦")[1:]]
    assert replies == [f"1{end}", f"2{end}"]
    assert tokenizer.encode(["x"]).ids.tolist() == templated("chatml").encode(["x"]).ids.tolist()


def test_a_stock_template_needs_its_special_tokens():
    """The template chatml is refused for a tokenizer without its tokens, with what to do instead."""
    source, tokens = STOCK_TEMPLATES["chatml"]
    with pytest.raises(ConfigurationError, match=r"no special token <\|im_start\|>.*data.chat.template=plain"):
        templated("gemma3").with_template(TemplateChoice(source, {}, DAY, tokens))


def test_a_template_is_written_with_the_tokenizer(tmp_path):
    """A tokenizer that was loaded again from its files renders as the one that wrote them, its bos token included."""
    from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer

    tokenizer = templated("mistral").with_template(TemplateChoice(None, {}, DAY))
    tokenizer.write(tmp_path)
    loaded = HuggingfaceTokenizer.load(str(tmp_path / "tokenizer.json"), backend="huggingface")
    message = [ChatMessage(MessageRole.USER, "Hi")]
    assert list(loaded.chat_template.encode(message)) == list(tokenizer.chat_template.encode(message))
    assert loaded.chat_template.fingerprint() == tokenizer.chat_template.fingerprint()


def test_a_begun_run_keeps_the_conversations_whose_prompts_are_not_whole():
    """By the first rules no part of a prompt is missed, and the template is the one that the run began with."""
    said = {"role": "user", "content": "hello", "name": "Ada"}
    talk = conversation_of({"messages": [said, {"role": "assistant", "content": "hi"}]})
    now, former = (
        templated("chatml").with_template(TemplateChoice(None, {}, DAY, checks_prompts=checks)).chat_template
        for checks in (True, False)
    )
    with pytest.raises(DataError, match="has a name in message 0"):
        now.encode_training([talk])
    assert former.encode_training([talk])
    assert now.fingerprint() != former.fingerprint()


_LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_USUAL = "{% for m in messages %}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (_LOOP, "does not end within 0.3 seconds"),
        ("{% if messages|length > 2 %}" + _LOOP + "{% endif %}", "does not end within 0.3 seconds"),
        (
            "{% macro f(n) %}{% if n < 40 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
            "does not end within 0.3 seconds",
        ),
        (
            "{% set ns = namespace(s='') %}{% for _ in range(9999) %}{% set ns.s = ns.s ~ 'x' * 99999 %}{% endfor %}",
            "takes more than 32.0 MiB of memory",
        ),
        ("{{ 10 ** 10 ** 9 }}", "computes a power"),
        ("{{ (9)**messages|length }}", "computes a power"),
        ("{{ 'a' * 20000 }}", "makes 20,... characters of one conversation"),
    ],
)
def test_a_template_without_bounds_is_refused(hostile, reason, monkeypatch):
    """One that loops, computes or writes beyond all measure is refused in training and in use, whatever is skipped."""
    if "does not end" in reason:
        monkeypatch.setattr("holdfast.adapters.tokenizer.rendering_limit.LONGEST", 0.3)
    monkeypatch.setattr("holdfast.adapters.tokenizer.rendering_limit.MOST_MEMORY", 32 << 20)
    monkeypatch.setattr("holdfast.adapters.tokenizer.rendering_limit.MOST_CHARACTERS", 10_000)
    template = templated("chatml", hostile + _USUAL).chat_template
    roles = [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.USER, MessageRole.ASSISTANT]
    talk = Conversation(tuple(ChatMessage(role, "a word") for role in roles))
    with pytest.raises(ConfigurationError, match=f"the chat template {reason}"):
        template.encode_training([talk])
    with pytest.raises(ConfigurationError, match=f"the chat template {reason}"):
        template.encode(talk.messages[:3])


def test_a_template_that_writes_half_a_character_is_refused():
    """What UTF-8 cannot hold is an error of the conversation with its reason, in training and in use."""
    template = templated("chatml", "{{ '\\ud800' }}" + _USUAL).chat_template
    talk = Conversation((ChatMessage(MessageRole.USER, "a"), ChatMessage(MessageRole.ASSISTANT, "b")))
    with pytest.raises(DataError, match=r"does not accept: .*surrogates not allowed"):
        template.encode_training([talk])
    with pytest.raises(DataError, match=r"does not accept this conversation: .*surrogates not allowed"):
        template.encode(talk.messages[:1])


def test_a_profiler_works_after_a_rendering():
    """Nothing is left that makes Python look for errors of other threads for ever while it is profiled."""
    lines = """
import sys
from holdfast.adapters.tokenizer.rendering_limit import within_limits
within_limits("a", lambda: "a")
sys.setprofile(lambda *_: None)
(lambda: None)()
sys.setprofile(None)
"""
    outcome = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, env=environment(), timeout=120, check=False)
    assert outcome.returncode == 0


def test_stars_that_are_no_power_are_taken():
    """Bold marks in texts, and arguments that are unpacked, are in usual templates."""
    source = "{{ '**bold** a**b' }}{% set d = dict(a=1) %}{{ dict(**d)|length }}{{ dict(d, **d)|length }}" + _USUAL
    template = templated("chatml", source).chat_template
    talk = Conversation((ChatMessage(MessageRole.USER, "a"), ChatMessage(MessageRole.ASSISTANT, "b")))
    assert len(template.encode_training([talk])) == 1
