"""Masks secrets in all output about the settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.domain.urls import hide_parameters, hide_user

if TYPE_CHECKING:
    from collections.abc import Callable

MASK = "<masked>"

_NAME = re.compile(r"auth|cookie|key|pat|pwd|sig")
_PART = re.compile(
    r"accesskey|accesstoken|accountkey|apikey|authorization|authtoken|connectionstring|credential|encryptionkey|"
    r"passphrase|passwd|password|privatekey|secret|securitytoken|sessiontoken|signature|signingkey"
)
# Tokens of a vocabulary, as model and tokenizer configurations name them: `eos_token` is no secret.
_VOCABULARY = re.compile(
    r"additional|audio|begin|bos|cls|decoder|end|eos|fim|image|mask|next|pad|per|sep|special|start|unk|unknown|video"
)
# What a library says of a URL may lack its scheme: it took `key:secret@bucket` for a name.
_BARE_USER = re.compile(r"""(?<![^\s"'`<>()\[\]{},=])[^\s"'`<>()\[\]{},=:/?#@]+:(?!//)[^\s"'`<>]{1,4096}@(?=\w)""")
_END = re.compile(r"&|(?<==\*\*\*)")  # a value that was hidden already ends by itself: a sentence may come after it


def is_secret(name: str) -> bool:
    """Return whether a key of this name holds a secret: ``hf_token`` does, ``max_tokens`` and ``eos_token`` do not."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    compact = "".join(words)
    if _NAME.fullmatch(compact) or _PART.search(compact):
        return True
    return words[-1:] == ["token"] and not any(_VOCABULARY.fullmatch(word) for word in words)


def mask_text(text: str) -> str:
    """Return ``text`` for a message, masked as by ``mask_url`` and without ``key:secret@`` before other names."""
    return _BARE_USER.sub(f"{MASK}@", mask_url(text))


def mask_url(text: str) -> str:
    """Return ``text`` without the user part of URLs and without their secret parameters."""
    return hide_parameters(hide_user(text, f"{MASK}@"), MASK, is_secret, end=_END)


def mask(value: Any, text: Callable[[str], str] = mask_text) -> Any:
    """Return a copy of plain data with its secrets masked; ``text`` masks the secrets within strings."""
    if isinstance(value, dict):
        return {key: _mask_all(item) if is_secret(key) else mask(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [mask(item, text) for item in value]
    return text(value) if isinstance(value, str) else value


def _mask_all(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mask_all(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_all(item) for item in value]
    return value if value is None or isinstance(value, bool) else MASK
