"""The options of an export, and its outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.operations.other_data import OtherData
from holdfast.domain.training.export_format import ExportFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.training.export_format import Sparsity


@final
@dataclass(frozen=True, slots=True)
class ExportOrder:
    """The form of an export.

    ``merged`` adds the adapters of a run to its weights. ``max_loss_increase`` is the largest relative increase of the
    held-out loss, None for any. ``license`` is the licence in the model card. Without ``is_checked`` the export is not
    read back. ``data`` replaces the held-out documents if it names any.
    """

    format: ExportFormat = field(default_factory=ExportFormat)
    merged: bool = False
    sparsity: Sparsity | None = None
    max_loss_increase: float | None = None
    license: str | None = None
    is_checked: bool = True
    data: OtherData = field(default_factory=OtherData)


@final
@dataclass(frozen=True, slots=True)
class LossChange:
    """The loss of the original and of the export on the same ``num_targets`` tokens, in nats per token."""

    before: float
    after: float
    num_targets: int

    @property
    def increase(self) -> float:
        """Return the increase as a share of the loss before."""
        return (self.after - self.before) / self.before if self.before else math.copysign(math.inf, self.after)


@final
@dataclass(frozen=True, slots=True)
class Exported:
    """An export of the checkpoint at ``location``; ``is_new`` if it was written now.

    ``change`` is None if no loss was compared. ``zeros`` is the share of zeros in the linear layers that were pruned,
    as they were read back, None if none were. ``notes`` are remarks for a person, and ``num_bytes`` the size of all
    files.
    """

    location: str = ""
    is_new: bool = True
    change: LossChange | None = None
    zeros: float | None = None
    notes: Sequence[str] = ()
    num_bytes: int = 0
