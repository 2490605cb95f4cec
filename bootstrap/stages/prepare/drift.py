"""Builds the comparison of a run's data with an earlier version of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.application.data.drift_monitor import DriftMonitor
from holdfast.bootstrap.stages.prepare.named_version import find_version, profile_in, profile_of
from holdfast.domain.data.dataset_version import digest
from holdfast.domain.data.profile import Profile
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import RunFailed, RunStarted, StepCompleted
from holdfast.ports.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.configs.sections.data import FeedSettings
    from holdfast.domain.events import Event
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.token_source import TokenSource


def build_drift_monitor(
    data: FeedSettings,
    folder: Path,
    bus: EventBus,
    encoder: Callable[[], DocumentEncoder],
    report: Callable[[str], object],
) -> DriftMonitor | None:
    """Return the comparison with the version that the settings name, None if they name none.

    ``folder`` is that of the token cache; ``encoder`` makes the tokens of the run, and is asked for when they are
    compared. Raises ``ConfigurationError`` if the data are tokens already, and
    ``DataError`` if there is no such version, or if it has no profile.
    """
    drift = data.drift
    if drift is None:
        return None
    if data.are_tokens:
        msg = "data.drift compares texts, and data.kind=tokens has no text: leave it out"
        raise ConfigurationError(msg)
    version = find_version(drift.reference, [folder])
    key = None if data.cache.encryption is None else data.cache.encryption.key_from
    reference = profile_of(version.tokens, key)
    return DriftMonitor(
        version.version.id,
        reference.profile,
        bus.publish,
        stops=drift.action == "stop",
        every=drift.every,
        has_same_tokens=lambda: reference.has_tokens_of(digest(encoder().fingerprint())),
        report=report,
    )


def check_cached_data(monitor: DriftMonitor | None, mode: str, folder: Path, caches: Sequence[TokenSource]) -> None:
    """Compare the tokens of ``caches`` as a whole, if the data are cached in ``folder``; streams are compared later.

    Raises ``DataError`` if the run is to stop.
    """
    if monitor is not None and mode == "cache":
        kept = [cache for cache in caches if isinstance(cache, TokenCache)]
        monitor.check(Profile.merged(profile_in(cache, "", folder).profile for cache in kept))


def drift_subscriptions(monitor: DriftMonitor | None) -> list[tuple[type[Event], Callable[[Any], object]]]:
    """Return the subscriptions that publish the drift that was found."""
    if monitor is None:
        return []
    return [(kind, monitor.on_event) for kind in (RunStarted, StepCompleted, RunFailed)]
