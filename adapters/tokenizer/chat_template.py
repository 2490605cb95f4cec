"""Chat templates in the format of Hugging Face."""

from __future__ import annotations

import json
import re
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

from tokenizers import Tokenizer as Core
from typing_extensions import override

from holdfast.adapters.tokenizer.hf_core import special_ids
from holdfast.domain.errors import DataError
from holdfast.domain.training.conversation import ChatMessage, MessageRole
from holdfast.ports.tokenizer import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_OPEN, _CLOSE = "\ue000", "\ue001"  # of private use: around the number of a special token in a message
_MARK = "\ue002"


@final
class JinjaChatTemplate(ChatTemplate):
    """Renders the template ``source`` as transformers does, in Jinja's sandbox, and encodes the result with ``core``.

    ``tokens`` are the special tokens by their names in ``tokenizer_config.json``, such as ``bos_token``.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], core: Core, end_of_text: int) -> None:
        self._source = source
        self._tokens = tokens
        self._end_of_text = end_of_text
        self._plain = core
        self._core = Core.from_str(core.to_str())
        self._core.encode_special_tokens = False
        added = self._core.get_added_tokens_decoder()
        self._special = sorted((added[number].content for number in special_ids(core)), key=len, reverse=True)
        self._special_text = re.compile("|".join(map(re.escape, self._special)))

    @cached_property
    @override
    def ends(self) -> AbstractSet[int]:
        """Return end-of-text and the first special id that the template puts after a reply."""
        try:
            rendered = self._render([ChatMessage(MessageRole.USER, "a"), ChatMessage(MessageRole.ASSISTANT, _MARK)])
        except DataError:
            return {self._end_of_text}
        rest = self._encode(rendered.rpartition(_MARK)[2])
        return {self._end_of_text, *[number for number in rest if number in special_ids(self._core)][:1]}

    @override
    def encode(self, messages: Sequence[ChatMessage]) -> Sequence[int]:
        hidden = [ChatMessage(message.role, self._hide(message.text)) for message in messages]
        rendered = self._render(hidden, add_generation_prompt=True)
        found = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
        places = [(0, 0), *(match.span() for match in found.finditer(rendered)), (len(rendered),) * 2]
        ids: list[int] = []
        for (start, begin), (end, _) in pairwise(places):
            if start != begin:
                token = self._special[int(rendered[start + 1 : begin - 1])]
                ids += self._plain.encode(token, add_special_tokens=False).ids
            ids += self._encode(rendered[begin:end])
        return ids

    def _hide(self, text: str) -> str:
        """Return ``text`` with each special token replaced by its number between two private characters."""
        own = text.replace(_OPEN, "\N{REPLACEMENT CHARACTER}")
        return self._special_text.sub(lambda found: f"{_OPEN}{self._special.index(found[0])}{_CLOSE}", own)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        return ids

    def _render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = False) -> str:
        conversation = [{"role": str(message.role), "content": message.text} for message in messages]
        try:
            text = self._renderer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # of Jinja, or anything that the template does
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            msg = f"the chat template of the tokenizer does not accept this conversation: {reason}"
            raise DataError(msg) from error
        return str(text)

    @cached_property
    def _renderer(self) -> Any:
        from transformers import PreTrainedTokenizerFast  # takes seconds

        core = Core.from_str(self._core.to_str())
        return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=self._source, **self._tokens)


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
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
    found = {name: config[name] for name in names if config.get(name) is not None}
    return source, {name: token["content"] if isinstance(token, dict) else token for name, token in found.items()}


def files_beside(file: Path) -> Mapping[str, bytes]:
    """Return the files beside a ``tokenizer.json`` that ``template_in`` reads."""
    found = [file.with_name(name) for name in (CONFIG, FILE)]
    return {path.name: path.read_bytes() for path in found if path.is_file()}
