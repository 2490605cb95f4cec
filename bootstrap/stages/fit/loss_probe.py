"""Compares the loss of a run with the plain one on its first batch, once on each machine."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.stages.build.model import network_of
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from holdfast.adapters.shared.modeling.loss_probe import LossDifference
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.ports.process_group import ProcessGroup

_PROBE = "holdfast.adapters.shared.modeling.loss_probe"
_PACKAGES = ("holdfast-lm", "liger-kernel", "torch", "triton")


def probe_loss(parts: Built, *, report: Callable[[str], object]) -> None:
    """Let the first batch that the model trains on compare its loss and gradients with the plain ones.

    A stamp in the cache folder remembers the machine, its versions and the sizes of the head for which they agreed, so
    that later runs do not compare them again; a loss of another package has none. All ranks call this. If they differ
    by more than rounding explains, the first forward raises ``ConfigurationError`` on all ranks, before a step is
    taken.
    """
    model: Any = parts.model
    is_watched = isinstance(parts.settings.optimizer, AccelerateOptimizerSettings) and network_of(model) is not None
    if not is_watched or model.loss == "plain":
        return
    if model.pipeline_parallelism is not None:
        return  # one rank alone has the head
    facts = _facts(parts)
    stamp, group = _stamp(parts, facts), parts.process_group
    if stamp is not None and _is_known(stamp, facts, group):
        return
    judge = partial(_judge, facts=facts, stamp=stamp if group.rank == 0 else None, report=report)
    model.loss_probe = lazy(f"{_PROBE}:LossProbe")(judge)


def _judge(
    difference: LossDifference, facts: Mapping[str, str], stamp: Path | None, report: Callable[[str], object]
) -> None:
    tolerance = lazy(f"{_PROBE}:LossTolerance.of")(facts["precision"])
    words = (
        f"its value by {difference.loss:.1e} (at most {tolerance.loss:.0e}) and its gradient by "
        f"{difference.gradient:.1e} (at most {tolerance.gradient:.0e})"
    )
    name = f"the {facts['loss']} loss"
    if not tolerance.allows(difference):
        msg = f"{name} differs from the plain one on this machine, {words}: set model.loss=plain"
        raise ConfigurationError(msg)
    report(f"{name} agrees with the plain one on the first batch, {words}")
    if stamp is not None:
        _remember(
            stamp, {**facts, "loss_difference": difference.loss, "gradient_difference": difference.gradient}, report
        )


def _facts(parts: Built) -> dict[str, str]:
    """Return all facts that the result depends on, by name."""
    model: Any = parts.model
    head = model.network.get_output_embeddings()
    wanted = parts.settings.model.loss
    return {
        "loss": model.loss if model.own_loss is None else wanted,
        "computed": model.loss,
        "precision": parts.hardware["optimizer.precision"],
        "device": parts.trainable.hardware.device,
        "machine": platform.node(),
        "head": f"{head.out_features} x {head.in_features}, bias {head.bias is not None}",
        **{package: _version(package) for package in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _stamp(parts: Built, facts: Mapping[str, str]) -> Path | None:
    model: Any = parts.model
    if model.own_loss is not None:  # whose code may change without a version
        return None
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    path: Path = parts.settings.run.cache_directory / "loss-probe" / f"{name}.json"
    return path


def _is_known(stamp: Path, facts: Mapping[str, str], group: ProcessGroup) -> bool:
    """Return whether the first rank has the stamp of these facts."""
    stamped: object = None
    if group.rank == 0:
        try:
            stamped = parse_json(read_regular(stamp))
        except (OSError, ValueError):  # there is none, or it is compared again
            stamped = None
    is_same = isinstance(stamped, dict) and facts.items() <= stamped.items()
    return bool(parse_json(group.gather(json.dumps(is_same))[0]))


def _remember(stamp: Path, record: Mapping[str, object], report: Callable[[str], object]) -> None:
    try:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        replace_file(stamp, json.dumps(record, sort_keys=True).encode(), is_shared=True)
    except OSError as error:
        report(f"{stamp} cannot be written ({error.strerror}): the loss will be compared again")
