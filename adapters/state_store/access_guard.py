"""Roles of a process with respect to a state store, and the record of their use."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from holdfast.domain.checkpoints.roles import Role
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    Record = Callable[[str, Mapping[str, object]], object]

_log = logging.getLogger(__name__)


def record_nothing(_event: str, _details: Mapping[str, object]) -> None:
    """Record nothing, for a guard without an audit."""


@final
class AccessGuard:
    """Allows the operations of ``roles``, and passes each refusal and each imminent deletion to ``record``."""

    def __init__(self, roles: Collection[Role] = tuple(Role), record: Record = record_nothing) -> None:
        self._roles = roles
        self._record = record

    def allows(self, role: Role) -> bool:
        """Return whether ``role`` is among the roles."""
        return role in self._roles

    def require(self, role: Role, what: str) -> None:
        """Raise ``ConfigurationError`` unless ``role`` is among the roles.

        ``what``, the operation that needs the role, begins the message.
        """
        if self.allows(role):
            return
        try:
            self._record("AccessRefused", {"role": str(role), "to": what})
        except StateError as error:
            _log.warning("a refusal could not be recorded in the audit: %s", error)
        msg = (
            f"{what} needs the role {role}, and state_store.roles has {', '.join(self._roles) or 'none'}: run it "
            "as a process that has it, or add that role"
        )
        raise ConfigurationError(msg)

    def record_deletion(self, name: str, reason: str) -> None:
        """Record that the checkpoint ``name`` is about to be deleted; exceptions of ``record`` prevent the deletion."""
        self._record("CheckpointDeleted", {"name": name, "reason": reason, "role": str(Role.DELETE)})
