"""Subscribes the balance of resources: the settings it may change, and the policy that decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.host_memory import give_back_freed
from holdfast.application.handlers.balance_resources import BalanceResources
from holdfast.application.resources.sampler import ResourceSampler
from holdfast.bootstrap.wiring.plugins import has_methods, load_plugin, make_plugin
from holdfast.bootstrap.wiring.process_group import mesh_of
from holdfast.domain.checkpoints.tiers import Hysteresis
from holdfast.domain.resources.balance_policy import Balance
from holdfast.domain.resources.balance_state import BalanceState
from holdfast.domain.resources.knobs import Knob, KnobSetting

if TYPE_CHECKING:
    from holdfast.bootstrap.wiring.run_parts import RunParts
    from holdfast.configs.sections.resources import ResourceSettings
    from holdfast.configs.sections.state_store import RetentionSettings
    from holdfast.domain.events import ResourcesAdjusted
    from holdfast.domain.resources.balance_state import BalancePolicy, Knobs

_SECONDS_BETWEEN_SAMPLES = 0.5
_LEAVE = 0.1  # below the share of memory that is too much: it is enough again
_LONGEST = 4  # times the steps between two checkpoints that the settings ask for: what a failure may cost


def build_balance(parts: RunParts) -> tuple[ResourceSampler, BalanceResources] | None:
    """Return the sampler of the machine and the handler that turns the knobs; None if the settings disable both."""
    if parts.host.resource_probe is None:
        return None
    sampler = ResourceSampler(parts.host.resource_probe, seconds=_SECONDS_BETWEEN_SAMPLES)
    policy, state = load_policy(parts.settings.resources), BalanceState(knobs_of(parts))
    return sampler, BalanceResources(policy, state, parts.opened.inbox, sampler.latest)


def free_unused_memory(event: ResourcesAdjusted) -> None:
    """Return the memory of activations to the system once a smaller micro-batch no longer needs it."""
    if event.knob is Knob.MICRO_BATCH and event.after < event.before:
        give_back_freed()


def load_policy(settings: ResourceSettings) -> BalancePolicy:
    """Return the policy in the settings; raises ``ConfigurationError`` if it cannot be loaded."""
    built_in = {"balance": lambda: Balance(Hysteresis(settings.max_memory, settings.max_memory - _LEAVE))}
    kind = settings.policy
    policy: BalancePolicy = make_plugin(
        "balance",
        kind,
        built_in[kind] if kind in built_in else load_plugin("balance", kind, built_in=built_in),
        settings.policy_options or {},
        is_one=lambda made: has_methods(made, "after_steps", "after_save"),
        otherwise=" without after_steps or after_save",
    )
    return policy


def knobs_of(parts: RunParts) -> Knobs:
    """Return the knobs of the run, with their current values and their limits."""
    settings, feed = parts.settings, parts.data.feed
    knobs: dict[Knob, KnobSetting] = _saving(settings.state_store)
    if feed.prefetch:
        most = max(feed.prefetch, settings.resources.io_queue_size)
        knobs[Knob.PREFETCH] = KnobSetting(feed.prefetch, feed.prefetch, 1, most)
    if feed.threads:
        most = feed.threads if settings.data.workers else max(feed.threads, feed.max_threads)
        knobs[Knob.THREADS] = KnobSetting(feed.threads, feed.threads, 1, most)
    if parts.model.hardware.get("optimizer.device") == "cpu":  # where activations lie in the host's memory
        mesh = mesh_of(settings.distributed, parts.opened.process_group.size)
        whole = -(-settings.optimizer.num_rows // mesh.data_ranks)
        rows = min(parts.micro_batch, whole)
        knobs[Knob.MICRO_BATCH] = KnobSetting(rows, rows, 1, rows)
    return knobs


def _saving(store: RetentionSettings) -> dict[Knob, KnobSetting]:
    """Return the interval of checkpoints as a knob, unless a change would skip checkpoints that must be kept."""
    if not store.every_steps or store.keep_every or store.keep_best:
        return {}
    return {
        Knob.SAVE_EVERY: KnobSetting(
            store.every_steps, store.every_steps, store.every_steps, store.every_steps * _LONGEST
        )
    }
