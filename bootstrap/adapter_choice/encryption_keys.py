"""The keys that a run's settings name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.adapters.state_store.store_folder import AccessGuard, record_nothing
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Role
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
    from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
    from holdfast.adapters.state_store.store_folder import Record
    from holdfast.bootstrap.run_folder.run_audit import Audit
    from holdfast.configs.sections.base import KeySettings
    from holdfast.configs.sections.state_store import EncryptionSettings, StateStoreSettings
    from holdfast.configs.settings import TrainSettings
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


_VARIABLE = "HOLDFAST_STATE_STORE__ROLES"


def guard_of(section: StateStoreSettings, audit: Audit) -> AccessGuard:
    """Return the guard that permits the roles in the settings; a store without roles permits every action."""
    return AccessGuard([Role(name) for name in section.roles], audit.record)


def refuse_to_train(settings: TrainSettings) -> None:
    """Raise ``ConfigurationError`` if the roles do not let a run save what it trains."""
    directory = settings.run.directory
    guard = guard_of(settings.state_store, audit_of(directory, settings.state_store))
    guard.require(Role.WRITE, f"training in {directory}")
    if settings.state_store.encryption is not None:
        guard.require(Role.KEY, f"training with encrypted checkpoints in {directory}")


def require_to_read(what: Path, *, is_encrypted: bool, record: Record = record_nothing) -> None:
    """Raise ``ConfigurationError`` unless the roles of a command permit it to read the data of ``what``.

    Data that are encrypted need the role to use the key too. ``record`` gets a refusal.
    """
    guard = AccessGuard([Role(name) for name in own_roles(os.environ)], record)
    guard.require(Role.READ, f"reading {what}")
    if is_encrypted:
        guard.require(Role.KEY, f"opening {what}, which is encrypted,")


def own_roles(environment: Mapping[str, str]) -> Sequence[str]:
    """Return the roles of a command that takes no settings: those in the environment, or all if none are set there."""
    named = {name: value for name, value in environment.items() if name == _VARIABLE}
    roles: Sequence[str] = load_settings([], [], named).settings.state_store.roles
    return roles
