"""Chat templates in the format of Hugging Face."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from functools import cached_property, partial
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from tokenizers import Tokenizer as Core
from typing_extensions import override

from holdfast.adapters.tokenizer.hf_core import special_ids
from holdfast.adapters.tokenizer.hidden_specials import HiddenSpecials
from holdfast.adapters.tokenizer.supervised_ids import RenderedEncoder
from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation import ChatMessage, Conversation, MessageRole, ToolCall
from holdfast.domain.training.reply_spans import render_replies, replies_to_train
from holdfast.ports.tokenizer import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from holdfast.domain.training.reply_spans import RenderedReplies, TrainOn
    from holdfast.ports.tokenizer import SupervisedIds

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_MARK = "\ue002"
_RENDERING = 1  # raise it when the same conversations give other ids or masks
_TRAINING_DATE = date(2024, 7, 26)
_FORMAT = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_NO_OPTIONS: Mapping[str, object] = MappingProxyType({})


@final
class JinjaChatTemplate(ChatTemplate):
    """Renders the template ``source`` as transformers does, in Jinja's sandbox, and encodes the result with ``core``.

    ``tokens`` are the special tokens by their names in ``tokenizer_config.json``, such as ``bos_token``. ``options``
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
        options: Mapping[str, object] = _NO_OPTIONS,
        training_date: date = _TRAINING_DATE,
    ) -> None:
        self._source = source
        self._undated = _dated(source, training_date)
        self._tokens = tokens
        self._core = core
        self._end_of_text = end_of_text
        self._options = dict(options)
        self._hidden = HiddenSpecials(core)
        self._encoder = RenderedEncoder(core, self._hidden)

    @cached_property
    @override
    def ends(self) -> AbstractSet[int]:
        """Return end-of-text, and the first special id that the template puts after a reply and after a tool call."""
        asked = ChatMessage(MessageRole.USER, "a")
        said = ChatMessage(MessageRole.ASSISTANT, _MARK)
        called = ChatMessage(MessageRole.ASSISTANT, "", tool_calls=(ToolCall("a", {"a": _MARK}, "aaaaaaaaa"),))
        special, found = special_ids(self._core), {self._end_of_text}
        for reply in (said, called):
            try:
                rendered = self._render([asked, reply])
            except _RefusedError:
                continue
            if _MARK in rendered:
                rest = self._encoder.ids(rendered.rpartition(_MARK)[2])
                found.update([number for number in rest if number in special][:1])
        return found

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
        content = [_RENDERING, self._undated, dict(self._tokens), self._options, self._end_of_text]
        return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _replies(self, conversation: Conversation, train_on: TrainOn) -> Sequence[RenderedReplies]:
        chosen = replies_to_train(conversation.messages, train_on)
        hidden = [self._hidden_message(message) for message in conversation.messages[: chosen[-1] + 1]]
        render = partial(self._render, tools=self._hidden.hide(conversation.tools), is_training=True)
        try:
            return render_replies(hidden, chosen, render, self._hidden.pattern)
        except _RefusedError as error:
            msg = f"is a conversation that the chat template does not accept: {error}"
            raise DataError(msg) from error
        except DataError as error:
            raise DataError(self._hidden.shown(str(error))) from error

    def _hidden_message(self, message: ChatMessage) -> ChatMessage:
        hide = self._hidden.hide
        calls = [replace(call, name=hide(call.name), arguments=hide(call.arguments)) for call in message.tool_calls]
        text, reasoning, name, call = map(hide, (message.text, message.reasoning, message.name, message.tool_call_id))
        return replace(message, text=text, reasoning=reasoning, name=name, tool_call_id=call, tool_calls=tuple(calls))

    def _render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, object]] = (),
        is_training: bool = False,
    ) -> str:
        try:
            text = self._renderer.apply_chat_template(
                [_as_template(message) for message in messages],
                tools=tools or None,
                chat_template=self._undated if is_training else self._source,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._options,
            )
        except Exception as error:  # of Jinja, or anything that the template does
            raise _RefusedError((str(error).strip() or type(error).__name__).splitlines()[0]) from error
        return str(text)

    @cached_property
    def _renderer(self) -> Any:
        from transformers import PreTrainedTokenizerFast  # takes seconds

        core = Core.from_str(self._core.to_str())
        return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=self._source, **self._tokens)


class _RefusedError(Exception):
    """The template raised an error; it never leaves this module."""


def _as_template(message: ChatMessage) -> dict[str, object]:
    """Return ``message`` by the names that templates use; what it lacks is left out."""
    found: dict[str, object] = {"role": str(message.role), "content": message.text}
    if message.reasoning:
        found |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
    if message.tool_calls:
        found["tool_calls"] = [_call(call) for call in message.tool_calls]
    also = {"name": message.name, "tool_call_id": message.tool_call_id}
    return found | {name: value for name, value in also.items() if value is not None}


def _call(call: ToolCall) -> dict[str, object]:
    found: dict[str, object] = {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return found if call.id is None else {"id": call.id, **found}


def _dated(source: str, day: date) -> str:
    """Return the template ``source`` with ``day`` in place of the current date, for the formats that it names."""
    days = {found[2]: day.strftime(found[2]) for found in _FORMAT.finditer(source)}
    if not days:
        return source
    return f"{{%- macro strftime_now(format) %}}{{{{- {json.dumps(days)}[format] }}}}{{%- endmacro %}}{source}"


def template_in(files: Mapping[str, bytes]) -> tuple[str, Mapping[str, str]] | None:
    """Return the chat template and the special tokens in the files of a tokenizer, None if it has no template.

    Of several templates it is the one named ``default``.
    """
    config = json.loads(files.get(CONFIG, b"{}"))
    source = files[FILE].decode() if FILE in files else config.get("chat_template")
    if isinstance(source, list):
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    found = {name: config[name] for name in _TOKEN_NAMES if config.get(name) is not None}
    return source, {name: token["content"] if isinstance(token, dict) else token for name, token in found.items()}


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
    tokens = {name: known[name] for name in _TOKEN_NAMES if known.get(name) is not None}
    merged = {**tokens, **config}
    merged.pop("chat_template", None)
    content = json.dumps(merged, indent=2, ensure_ascii=False)
    return {**files, CONFIG: content.encode(), FILE: str(text).encode()}


def files_beside(file: Path) -> Mapping[str, bytes]:
    """Return the files beside a ``tokenizer.json`` that ``template_in`` reads."""
    found = [file.with_name(name) for name in (CONFIG, FILE)]
    return {path.name: path.read_bytes() for path in found if path.is_file()}
