"""Loss scaling, which prevents underflow of small fp16 gradients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.tensor_state.file_parts import TextPart, read_whole
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.ports.state_store import OpenFile, StatePart

LOSS_SCALE_FILE = "loss_scale.json"

_FIRST = 2.0**16  # this and the next are those of torch's GradScaler
_GROWTH_STEPS = 2000


@final
class LossScale:
    """A power of two, so scaling rounds nothing; halved until gradients are finite, doubled after 2000 steps.

    torch's ``GradScaler`` skips a step when gradients overflow; here it is computed again at half the scale, so that no
    batch is skipped. ``value`` is the scale of the current step; ``settle`` accepts it once the step is taken.
    """

    def __init__(self, value: float = _FIRST, *, good_steps: int = 0) -> None:
        self.value = self._settled = value
        self._good_steps = good_steps

    def lower(self) -> bool:
        """Halve the value for another try; return False, with nothing changed, if it is 1 or below."""
        if self.value <= 1:
            return False
        self.value /= 2
        return True

    def settle(self) -> None:
        """Accept the value after a step was taken with it."""
        self._good_steps = 1 if self.value < self._settled else self._good_steps + 1
        if self._good_steps == _GROWTH_STEPS:
            self.value, self._good_steps = self.value * 2, 0
        self._settled = self.value

    def forget(self) -> None:
        """Return to the value of the last step that was taken."""
        self.value = self._settled

    def capture(self) -> StatePart:
        """Return the settled value as a file."""
        return TextPart(LOSS_SCALE_FILE, json.dumps({"scale": self._settled, "good_steps": self._good_steps}))

    @classmethod
    def read(cls, folder: Path, open_file: OpenFile = open_plainly) -> LossScale:
        """Return the scale that ``capture`` wrote, or a new one if there is no file.

        Raises ``StateError`` if the file cannot be read.
        """
        path = folder / LOSS_SCALE_FILE
        if not path.exists():
            return cls()
        try:
            saved = json.loads(read_whole(path, open_file))
            return cls(float(saved["scale"]), good_steps=int(saved["good_steps"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            msg = f"{path} cannot be read: {error}; restore another checkpoint"
            raise StateError(msg) from error
