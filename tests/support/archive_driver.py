"""Archives a checkpoint and kills itself on the way; of a folder, at each point, and tells what each recovery found.

python archive_driver.py put URL FOLDER POINT
python archive_driver.py parts URL FOLDER
python archive_driver.py all SCRATCH
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from holdfast.adapters.state_store.archive import object_store as checksum
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from tests.support.archives import WatchedObjects, archive_of, committed, content_of, objects_at
from tests.support.crash_driver import in_child
from tests.support.file_faults import KillAt, WatchedFiles

FILES = {"model": b"weights" * 1000, "rng/rank-00000": b"r"}


def taken(objects) -> CheckpointArchive:
    """Return the archive of a process that came after one that was killed, an hour later."""
    lease = ArchiveLease(objects, say=lambda _: None, host="another", sleep=later.append, clock=lambda: sum(later))
    assert lease.acquire()
    return CheckpointArchive(objects, lease=lease)


later = [0.0]


def put(url: str, folder: str, point: str) -> None:
    """Archive ``folder`` until the operation on objects of that number."""
    killer = KillAt(int(point))
    archive_of(WatchedObjects(objects_at(url), killer)).put(Path(folder))


def parts(url: str, folder: str) -> None:
    """Archive ``folder``, and die when a file's parts are there and are not yet one object."""
    from s3fs import S3FileSystem

    checksum._PART = 5 << 20
    call = S3FileSystem._call_s3

    async def die(self, method, *arguments, **options):
        if method == "complete_multipart_upload":
            os.kill(os.getpid(), signal.SIGKILL)
        return await call(self, method, *arguments, **options)

    S3FileSystem._call_s3 = die
    archive_of(objects_at(url)).put(Path(folder))


def recover(root: Path, folder: Path) -> dict:
    """Return what a new process finds and makes of it."""
    objects = LocalObjectStore(root)
    counted = [info.progress.step for info in CheckpointArchive(objects).list()]
    archive = taken(objects)
    archive.sweep()
    swept = sorted({key.split("/")[0] for key in objects.find()})
    archive.put(folder)
    archive.fetch(7, root / "draft")
    fetched = {path: (root / "draft" / path).read_bytes() == (folder / path).read_bytes() for path in FILES}
    return {"counted": counted, "swept": swept, "fetched": all(fetched.values()), "keys": len(content_of(objects))}


def every(scratch: str) -> None:
    """Print a JSON list of what ``recover`` returned after a kill at each file operation of a put."""
    folder = committed(Path(scratch) / "run", 7, FILES)
    outcomes = []
    for point in range(1000):
        root = Path(scratch) / f"{point}"
        root.mkdir()
        objects = LocalObjectStore(root, WatchedFiles(KillAt(point)))
        status, _ = in_child(lambda: archive_of(objects).put(folder))  # noqa: B023
        if status == 0:
            break
        assert os.WIFSIGNALED(status), f"the child failed by itself at point {point}"
        outcomes.append({"point": point, **(in_child(lambda: recover(root, folder))[1] or {})})  # noqa: B023
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    {"put": put, "parts": parts, "all": every}[sys.argv[1]](*sys.argv[2:])
