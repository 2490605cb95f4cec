"""The permissions of this process on the checkpoints of a run, from the settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.adapters.state_store.store_folder import AccessGuard, record_nothing
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.store_folder import Record
    from holdfast.bootstrap.run_folder.run_audit import Audit
    from holdfast.configs.sections.state_store import StateStoreSettings
    from holdfast.configs.settings import TrainSettings

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
