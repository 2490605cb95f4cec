"""A folder of verified bytes of a checkpoint, for libraries that read files themselves."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.tensor_state.file_parts import read_whole
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.state_store import OpenFile

_TENSORS = ".safetensors"


@final
class VerifiedCopy:
    """A temporary copy of a checkpoint's files except the tensors, such as descriptions and tokenizer.

    A library that opens a file by its name does not hash the bytes that it reads. The bytes in this copy were verified
    when they were read from the checkpoint. ``scratch``, if given, is a file system in memory. The copy is deleted with
    this object. Raises ``StateError`` if it cannot be written.
    """

    def __init__(self, checkpoint: Path, open_file: OpenFile, scratch: Path | None) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=scratch))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            for path in checkpoint.rglob("*"):
                if path.suffix != _TENSORS and path.is_file():
                    target = self.folder / path.relative_to(checkpoint)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(read_whole(path, open_file))
        except OSError as error:
            msg = f"the description of the model in {checkpoint} cannot be copied to {scratch}, {explain(error)}"
            raise StateError(msg) from error


def scratch_of(settings: TrainSettings) -> Path | None:
    """Return the folder that may hold decrypted files for a short time, None for any folder."""
    encryption = settings.state_store.encryption
    return None if encryption is None else encryption.scratch
