"""Chat templates in the format of Hugging Face."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cached_property, partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from tokenizers import Tokenizer as Core
from typing_extensions import override

from holdfast.adapters.tokenizer.document_frame import CONFIG, TOKEN_NAMES
from holdfast.adapters.tokenizer.hf_core import HiddenSpecials, special_ids
from holdfast.adapters.tokenizer.rendering_limit import within_limits
from holdfast.adapters.tokenizer.supervised_ids import RenderedEncoder
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.training.conversation_record import ChatMessage, Conversation, MessageRole, ToolCall
from holdfast.domain.training.reply_spans import ReplyMarks, render_replies, replies_to_train
from holdfast.ports.tokenizer import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from holdfast.domain.training.reply_spans import RenderedReplies, TrainOn
    from holdfast.ports.tokenizer import SupervisedIds

FILE = "chat_template.jinja"
_FILE_WITH_TOOLS = "additional_chat_templates/tool_use.jinja"
_NO_THOUGHT = "enable_thinking"
_MARK = "\ue002"
_RENDERING = 1  # raise it when the same conversations give other ids or masks
_THOUGHT = re.compile(r"(\s*<think>)?((?:(?!<think>).)*?)</think>(.*)", re.DOTALL)
_TRAINING_DATE = date(2024, 7, 26)
_FORMAT = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_TAKEN = frozenset(
    {
        *("conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""Arguments of transformers that are no variables of a template."""
_ASKED = ChatMessage(MessageRole.USER, "a")
_SAID = ChatMessage(MessageRole.ASSISTANT, _MARK)
_CALLED = ChatMessage(MessageRole.ASSISTANT, "", tool_calls=(ToolCall("a", {"a": _MARK}, "aaaaaaaaa"),))
_RETURNED = ChatMessage(MessageRole.TOOL, "a", name="a", tool_call_id="aaaaaaaaa")
_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


@final
class JinjaChatTemplate(ChatTemplate):
    """Renders the template ``source`` as transformers does, in Jinja's sandbox, and encodes the result with ``core``.

    ``tokens`` are the special tokens by their names in ``tokenizer_config.json``, such as ``bos_token``.
    ``source_with_tools`` is the template of conversations with tools, if it is another one. ``options``
    are variables of the template, such as ``enable_thinking``. A template that writes the current date writes
    ``training_date`` into conversations to train on, so that these are the same on each day.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        core: Core,
        end_of_text: int,
        *,
        source_with_tools: str | None = None,
        options: Mapping[str, object] = _NO_OPTIONS,
        training_date: date = _TRAINING_DATE,
        checks_prompts: bool = True,
    ) -> None:
        self._checks_prompts = checks_prompts
        self._source, self._source_with_tools = source, source_with_tools or source
        self._undated = _dated(source, training_date)
        self._undated_with_tools = _dated(self._source_with_tools, training_date)
        self._tokens = tokens
        self._core = core
        self._end_of_text = end_of_text
        self._options = dict(options)
        self._hidden = HiddenSpecials(core)
        self._encoder = RenderedEncoder(core, self._hidden)

    @cached_property
    @override
    def ends(self) -> AbstractSet[int]:
        """Return end-of-text, and the first special id that the template puts after a reply and after a tool call.

        Without such an id it is the mark of the message that follows.
        """
        special, ends = special_ids(self._core), {self._end_of_text}
        for reply, marks in ((_SAID, self._marks.after_text), (_CALLED, self._marks.after_call)):
            rest = self._encoder.ids(marks or self._behind([_ASKED, reply]))
            ends.update([number for number in rest if number in special][:1])
        return ends

    @cached_property
    def _marks(self) -> ReplyMarks:
        """Return the marks of replies: those of the next role, unless a special token ends a reply."""
        special, behind = self._hidden.pattern, self._behind([_ASKED, _SAID])
        if special.search(behind):
            return ReplyMarks(special)
        marks = []
        for reply, following in ((_SAID, _ASKED), (_CALLED, _RETURNED)):
            mark = special.search(self._behind([_ASKED, reply, following]))
            marks.append(mark[0] if mark and mark[0] != self._tokens.get("bos_token") else "")
        return ReplyMarks(special, *marks)

    def _behind(self, messages: Sequence[ChatMessage]) -> str:
        """Return what the template writes behind the mark in ``messages``; nothing if it does not accept them."""
        try:
            return self._render(messages).partition(_MARK)[2]
        except _RefusedError:
            return ""

    @override
    def encode(self, messages: Sequence[ChatMessage]) -> Sequence[int]:
        hidden = [self._hidden_message(message) for message in messages]
        try:
            return self._encoder.ids(self._render(hidden, add_generation_prompt=True))
        except _RefusedError as error:
            msg = f"the chat template of the tokenizer does not accept this conversation: {error}"
            raise DataError(msg) from error

    @override
    def encode_training(
        self, conversations: Sequence[Conversation], train_on: TrainOn = "all_assistant"
    ) -> Sequence[Sequence[SupervisedIds]]:
        rendered = [self._replies(conversation, train_on) for conversation in conversations]
        documents = iter(self._encoder.supervised([text for texts in rendered for text in texts], self._end_of_text))
        return [[next(documents) for _ in texts] for texts in rendered]

    @override
    def fingerprint(self) -> str:
        content = [_RENDERING, self._undated, dict(self._tokens), self._options, self._end_of_text, *self._rules]
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()

    @cached_property
    def _rules(self) -> list[str]:
        """Return the later rules that change what this template trains on; other templates keep their fingerprint."""
        rules = ["parts of prompts are checked"] if self._checks_prompts else []
        rules += [self._undated_with_tools] if self._source_with_tools != self._source else []
        if self._marks.after_text:
            rules.append("the mark of the next role ends a reply")
        if self._hidden.pattern.fullmatch("<think>"):
            rules.append("thoughts in texts have special tokens")
        try:
            said, again = (self._render([_ASKED, _SAID], add_generation_prompt=each) for each in (False, True))
            asked = self._render([_ASKED, _SAID, _ASKED], add_generation_prompt=True)
            called = self._applied([_as_template(each) for each in (_ASKED, _CALLED)], chat_template=self._source)
        except _RefusedError:
            return rules
        num_behind = len(self._hidden.pattern.findall(self._behind([_ASKED, _SAID])))
        if num_behind > 1 and (said == again or not asked.startswith(said)):
            rules.append("texts are compared by tokens, and the beginning of another reply ends none")
        if str(_CALLED.tool_calls[0].arguments) in called:
            rules.append("arguments of calls are JSON")
        return rules

    def _replies(self, conversation: Conversation, train_on: TrainOn) -> Sequence[RenderedReplies]:
        chosen = replies_to_train(conversation.messages, train_on)
        hidden = Conversation(
            tuple(self._hidden_message(message) for message in conversation.messages[: chosen[-1] + 2]),
            tuple(self._hidden.hide(conversation.tools)),
        )
        for name in conversation.options:
            if name in _TAKEN or name not in self._source_with_tools + self._source:
                msg = f"has {name!r} in chat_template_kwargs, which is no variable of the chat template: take it out"
                raise DataError(msg)
        options = self._hidden.hide(dict(conversation.options))
        render = partial(self._render, tools=hidden.tools, options=options, is_training=True)
        try:
            return render_replies(hidden, chosen, render, self._marks, checks_prompts=self._checks_prompts)
        except _RefusedError as error:
            msg = f"is a conversation that the chat template does not accept: {error}"
            raise DataError(msg) from error
        except DataError as error:
            raise DataError(self._hidden.shown(str(error))) from error

    def _hidden_message(self, message: ChatMessage) -> ChatMessage:
        hide = self._hidden.hide
        calls = [replace(call, name=hide(call.name), arguments=hide(call.arguments)) for call in message.tool_calls]
        reasoning, name, call = map(hide, (message.reasoning, message.name, message.tool_call_id))
        text = hide(message.text)
        if message.is_reply and (thought := _THOUGHT.fullmatch(message.text)) is not None:
            begin, inner, rest = thought.groups("")
            text = f"{begin}{hide(inner)}</think>{hide(rest)}"
        return replace(message, text=text, reasoning=reasoning, name=name, tool_call_id=call, tool_calls=tuple(calls))

    def _render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = False,
        reasons: bool = True,
        options: Mapping[str, object] = _NO_OPTIONS,
        is_training: bool = False,
    ) -> str:
        """Return the text of ``messages``, with the arguments of calls as objects, or as JSON if that is refused.

        A template that writes objects as Python does gets JSON too.
        """
        sources = (self._undated, self._undated_with_tools) if is_training else (self._source, self._source_with_tools)
        given: dict[str, Any] = {**self._options, **options}
        if not reasons and _NO_THOUGHT in sources[bool(tools)]:
            given.setdefault(_NO_THOUGHT, False)
        given |= {"tools": tools, "add_generation_prompt": add_generation_prompt}
        given["chat_template"] = sources[bool(tools)]
        as_objects, as_text = (
            [_as_template(message, writes_arguments=each) for message in messages] for each in (False, True)
        )
        arguments = [call.arguments for message in messages for call in message.tool_calls]
        try:
            text = self._applied(as_objects, **given)
        except _RefusedError:
            if not arguments:
                raise
            with suppress(_RefusedError):
                return self._applied(as_text, **given)
            raise
        is_python = any(each and str(each) in text and _json(each) not in text for each in arguments)
        return self._applied(as_text, **given) if is_python else text

    def _applied(self, messages: Sequence[Mapping[str, object]], **options: Any) -> str:
        tools = options.pop("tools", ()) or None
        renderer = self._renderer
        render = partial(renderer.apply_chat_template, messages, tools=tools, tokenize=False, **options)
        try:
            text = within_limits(options["chat_template"], lambda: str(render()))
            text.encode()  # half of a surrogate pair, which no tokenizer takes
        except ConfigurationError:
            raise
        except Exception as error:  # of Jinja, or anything that the template does
            raise _RefusedError((str(error).strip() or type(error).__name__).splitlines()[0]) from error
        return text

    @cached_property
    def _renderer(self) -> Any:
        from transformers import PreTrainedTokenizerFast  # takes seconds

        core = Core.from_str(self._core.to_str())
        return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=self._source, **self._tokens)


class _RefusedError(Exception):
    """The template raised an error; it never leaves this module."""


def _as_template(message: ChatMessage, *, writes_arguments: bool = False) -> dict[str, object]:
    """Return ``message`` by the names that templates use; what it lacks is left out.

    The arguments of calls are objects, or their text if ``writes_arguments``.
    """
    fields: dict[str, object] = {"role": str(message.role), "content": message.text}
    if message.reasoning:
        fields |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.tool_calls:
        fields["tool_calls"] = [
            _call(call, _json(call.arguments) if writes_arguments else call.arguments) for call in message.tool_calls
        ]
    also = {"name": message.name, "tool_call_id": message.tool_call_id}
    return fields | {name: value for name, value in also.items() if value is not None}


def _call(call: ToolCall, arguments: object) -> dict[str, object]:
    entry: dict[str, object] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return entry if call.id is None else {"id": call.id, **entry}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _dated(source: str, day: date) -> str:
    """Return the template ``source`` with ``day`` in place of the current date, for the formats that it names."""
    days = {match[2]: day.strftime(match[2]) for match in _FORMAT.finditer(source)}
    if not days:
        return source
    return f"{{%- macro strftime_now(format) %}}{{{{- {json.dumps(days)}[format] }}}}{{%- endmacro %}}{source}"


def source_with_tools_in(files: Mapping[str, bytes]) -> str | None:
    """Return the template for conversations with tools in the files of a tokenizer, None if it is no other one."""
    if _FILE_WITH_TOOLS in files:
        return files[_FILE_WITH_TOOLS].decode()
    source = json.loads(files.get(CONFIG, b"{}")).get("chat_template")
    if FILE in files or not isinstance(source, list):
        return None
    return next((each["template"] for each in source if each.get("name") == "tool_use"), None)


def template_in(files: Mapping[str, bytes]) -> tuple[str, Mapping[str, str]] | None:
    """Return the chat template and the special tokens in the files of a tokenizer, None if it has no template.

    Of several templates it is the one named ``default``; ``source_with_tools_in`` gives that for tools.
    """
    config = json.loads(files.get(CONFIG, b"{}"))
    source = files[FILE].decode() if FILE in files else config.get("chat_template")
    if isinstance(source, list):
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    tokens = {name: config[name] for name in TOKEN_NAMES if config.get(name) is not None}
    return source, {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def files_with_template(
    files: Mapping[str, bytes], templates: Mapping[str, bytes], source: str | None
) -> Mapping[str, bytes] | None:
    """Return ``files`` of a tokenizer with the template ``source``, or with that in ``templates`` if it is None.

    The special tokens that a template may write are among them. None if there is no template.
    """
    config, known = (json.loads(some.get(CONFIG, b"{}")) for some in (files, templates))
    own = template_in(templates)
    if source is None and own is None:
        return None
    text = own[0] if source is None and own is not None else source
    tokens = {name: known[name] for name in TOKEN_NAMES if known.get(name) is not None}
    merged = {**tokens, **config}
    merged.pop("chat_template", None)
    content = json.dumps(merged, indent=2, ensure_ascii=False)
    made = {**files, CONFIG: content.encode(), FILE: str(text).encode()}
    made.pop(_FILE_WITH_TOOLS, None)
    with_tools = source_with_tools_in(templates) if source is None else None
    return made if with_tools is None else {**made, _FILE_WITH_TOOLS: with_tools.encode()}


def files_beside(file: Path) -> Mapping[str, bytes]:
    """Return the files beside a ``tokenizer.json`` that ``template_in`` reads."""
    places = {name: file.parent / name for name in (CONFIG, FILE, _FILE_WITH_TOOLS)}
    return {name: path.read_bytes() for name, path in places.items() if path.is_file()}
