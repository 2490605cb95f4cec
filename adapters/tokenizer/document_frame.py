"""The special tokens around a document, as the post-processor of a tokenizer has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, NamedTuple

from tokenizers import Tokenizer, processors

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    AddBos = bool | Literal["auto"]

CONFIG = "tokenizer_config.json"
_FILE = "tokenizer.json"
TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_FLAGS = ("add_bos_token", "add_eos_token")
_PROBES = ("a", "the", "1", "\u4e00")


class DocumentFrame(NamedTuple):
    """The special ids before the text of a document and after it."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def with_end(self, end_of_text: int) -> DocumentFrame:
        """Return these ids with ``end_of_text`` at the end, once."""
        return self if self.suffix[-1:] == (end_of_text,) else self._replace(suffix=(*self.suffix, end_of_text))


def frame_of(core: Tokenizer, name: str) -> DocumentFrame:
    """Return what the post-processor of ``core`` puts around a text.

    Raises ``ConfigurationError`` if it does anything else to it.
    """
    for text in _PROBES:
        whole, unframed = (core.encode(text, add_special_tokens=adds) for adds in (True, False))
        plain = _without_processor(core, text)
        if not plain:
            continue
        begin = whole.special_tokens_mask.index(0) if 0 in whole.special_tokens_mask else 0
        end = begin + len(plain)
        if whole.ids[begin:end] == plain == unframed.ids:
            return DocumentFrame(tuple(whole.ids[:begin]), tuple(whole.ids[end:]))
        msg = f"{name} has a post-processor that does more than put tokens around a text: set tokenizer.add_bos=false"
        raise ConfigurationError(msg)
    return DocumentFrame((), ())


def _without_processor(core: Tokenizer, text: str) -> list[int]:
    # one may leave the text out, or repeat it, although no special tokens are asked for
    processor, core.post_processor = core.post_processor, None
    try:
        return core.encode(text, add_special_tokens=False).ids
    finally:
        core.post_processor = processor


def settle_frame(
    core: Tokenizer, name: str, add_bos: AddBos, config: Mapping[str, bytes], end_of_text: int
) -> DocumentFrame:
    """Give ``core`` the post-processor that ``add_bos`` asks for, and return what it puts around a text.

    With ``auto`` it keeps its own. With true a text begins with the ``bos_token`` of the configuration among the
    files ``config``, with false it gets no token but ``end_of_text`` where it had that one. Raises
    ``ConfigurationError`` if there is no ``bos_token``.
    """
    if add_bos == "auto":
        return frame_of(core, name)
    if not add_bos:
        is_ended = core.encode(_PROBES[0], add_special_tokens=True).ids[-1:] == [end_of_text]
        chosen = DocumentFrame((), (end_of_text,) if is_ended else ())
    else:
        bos = core.token_to_id(token) if (token := token_named(config_in(config), "bos_token")) else None
        if bos is None:
            msg = f"tokenizer.add_bos is true, but {name} has no bos_token: leave it out, or name it in {CONFIG}"
            raise ConfigurationError(msg)
        chosen = DocumentFrame((bos,), frame_of(core, name).suffix)
    core.post_processor = _template(core, chosen)
    return chosen


def leave_out_suffix(folder: Path) -> None:
    """Let the tokenizer in ``folder`` put no tokens after a text, for programs that continue texts."""
    file = folder / _FILE
    core = Tokenizer.from_file(str(file)) if file.is_file() else None
    if core is None or not (frame := frame_of(core, str(file))).suffix:
        return
    begun = frame._replace(suffix=())
    core.post_processor = _template(core, begun)
    files = {name: (folder / name).read_bytes() for name in (_FILE, CONFIG) if (folder / name).is_file()}
    for name, content in with_frame(files, core, begun).items():
        (folder / name).write_bytes(content)


def contradiction(config: Mapping[str, object], prefix: Sequence[int]) -> str | None:
    """Return a sentence if ``add_bos_token`` of ``config`` says something else than the special ids before a text.

    transformers 5 leaves it out where there is a ``tokenizer.json``, and earlier versions obeyed it.
    """
    asked = config.get("add_bos_token")
    if not isinstance(asked, bool) or asked == bool(prefix):
        return None
    has = "puts no token" if asked else "puts a token"
    return (
        f"{CONFIG} has add_bos_token={str(asked).lower()}, but the post-processor in tokenizer.json, which is obeyed, "
        f"{has} before a text: set tokenizer.add_bos={str(asked).lower()} if the model was trained otherwise"
    )


def with_frame(files: Mapping[str, bytes], core: Tokenizer, frame: DocumentFrame) -> Mapping[str, bytes]:
    """Return ``files`` of a tokenizer with the post-processor of ``core``, which puts ``frame`` around a text."""
    record, config = json.loads(files[_FILE]), dict(config_in(files))
    record["post_processor"] = json.loads(core.to_str())["post_processor"]
    for flag, ids in zip(_FLAGS, frame, strict=True):
        token = token_named(config, flag.removeprefix("add_"))
        is_usual = not ids or (token is not None and ids == (core.token_to_id(token),))
        config.pop(flag, None)
        if is_usual and len(frame.prefix) <= 1 and len(frame.suffix) <= 1:
            config[flag] = bool(ids)
    return {
        **files,
        _FILE: json.dumps(record, indent=2, ensure_ascii=False).encode(),
        CONFIG: json.dumps(config, indent=2, ensure_ascii=False).encode(),
    }


def named_tokens(files: Mapping[str, bytes], core: Tokenizer, frame: DocumentFrame) -> Mapping[str, object]:
    """Return the special tokens by their names in the configuration among ``files``, and that which begins a text."""
    begin = {"bos_token": core.id_to_token(frame.prefix[0])} if len(frame.prefix) == 1 else {}
    config = config_in(files)
    return begin | {name: config[name] for name in TOKEN_NAMES if config.get(name) is not None}


def token_named(config: Mapping[str, object], name: str) -> str | None:
    """Return the text of the token ``name`` in a configuration, None if it names none."""
    token = config.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def config_in(files: Mapping[str, bytes]) -> Mapping[str, object]:
    """Return the configuration among the ``files`` of a tokenizer, empty if there is none."""
    config: Mapping[str, object] = json.loads(files.get(CONFIG, b"{}"))
    return config


def _template(core: Tokenizer, frame: DocumentFrame) -> processors.TemplateProcessing:
    tokens = {number: str(core.id_to_token(number)) for number in (*frame.prefix, *frame.suffix)}
    before, after = ([tokens[number] for number in each] for each in frame)
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(token, number) for number, token in tokens.items()],
    )
