"""The keys that a run's settings name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
    from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
    from holdfast.configs.sections.base import KeySettings
    from holdfast.configs.sections.state_store import EncryptionSettings
    from holdfast.ports.key_provider import KeyProvider

KEY_KINDS = ("env", "file")


def build_checkpoint_encryption(settings: EncryptionSettings | None) -> CheckpointEncryption | None:
    """Return the encryption of a run's checkpoints, or None; raises ``ConfigurationError`` if its key is missing."""
    if settings is None:
        return None
    provider = key_provider(settings, "state_store.encryption")
    encryption: CheckpointEncryption = lazy("holdfast.adapters.state_store.checkpoint_encryption:CheckpointEncryption")(
        provider, settings.scratch
    )
    return encryption


def build_shard_encryption(settings: KeySettings | None) -> ShardEncryption | None:
    """Return the encryption of a run's tokens, or None; raises ``ConfigurationError`` if its key is missing."""
    if settings is None:
        return None
    provider = key_provider(settings, "data.cache.encryption")
    encryption: ShardEncryption = lazy("holdfast.adapters.shared.token_store.token_encryption:ShardEncryption")(
        provider
    )
    return encryption


def key_provider(settings: KeySettings, section: str) -> KeyProvider:
    """Return the provider of the keys in ``settings``, which are the settings of ``section``.

    Raises ``ConfigurationError`` if the keys are not available.
    """
    places_of_keys = [settings.key_from, *settings.old_keys_from]
    kinds, places = zip(*(_split(place, section) for place in places_of_keys), strict=True)
    if len(set(kinds)) > 1:
        msg = f"{section}.old_keys_from must be of the same kind as key_from, such as env: or file:"
        raise ConfigurationError(msg)
    first, *old = places
    provider: KeyProvider
    try:
        if kinds[0] == "env":
            provider = lazy("holdfast.adapters.key_provider.environment:EnvironmentKeyProvider")(
                os.environ, first, old=old
            )
        elif kinds[0] == "file":
            paths = [expanded(place) for place in places]
            provider = lazy("holdfast.adapters.key_provider.file:FileKeyProvider")(paths[0], old=paths[1:])
        else:
            plugin = load_plugin("key_provider", kinds[0], built_in=KEY_KINDS)
            check_options("key_provider", kinds[0], plugin, first, old=old)
            provider = build_plugin("key_provider", kinds[0], plugin, first, old=old)
    except ImportError as error:
        msg = f'{section} needs another package: pip install "holdfast-lm[encryption]"'
        raise ConfigurationError(msg) from error
    return provider


def _split(place: str, section: str) -> tuple[str, str]:
    kind, colon, rest = place.partition(":")
    if not colon or not kind or not rest:
        msg = f"{section} must name a key by env:NAME or file:PATH (its value is not shown, as it may be a key itself)"
        raise ConfigurationError(msg)
    return kind, rest
