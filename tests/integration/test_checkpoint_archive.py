"""The archive of checkpoints in a folder, in memory and on an S3 server: what lies where, and what becomes of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import fsspec
import pytest

from holdfast.adapters.state_store.archive import object_store as checksum
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.object_store import ObjectInfo
from holdfast.adapters.state_store.archive.open_object_store import open_object_store
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.adapters.state_store.manifest import commit_of
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import ConfigurationError, StateError
from tests.support.archives import FILES, WatchedObjects, archive_of, committed, content_of, objects_at
from tests.support.s3_server import s3_server

OTHER = {name: data[::-1] + b"!" for name, data in FILES.items()}
_numbers = count()


@pytest.fixture(scope="module")
def server():
    with s3_server("archive") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)  # nothing fails here, so the way round the proxy is short
        yield server


NEAR = pytest.mark.parametrize("url", ["folder", "memory"], indirect=True)


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request, tmp_path):
    """Return the URL of an archive that nothing is in yet."""
    if request.param == "s3":
        yield f"s3://{request.getfixturevalue('server').bucket}/run-{next(_numbers)}"
    elif request.param == "memory":
        yield f"memory:/{tmp_path}"
        files = fsspec.filesystem("memory")
        if files.exists(str(tmp_path)):
            files.rm(str(tmp_path), recursive=True)
    else:
        yield str(tmp_path / "archive")


def test_an_archived_checkpoint_comes_back_as_it_was(url, tmp_path):
    """What was put can be fetched, byte for byte, by a process that holds no lease, and resumed from."""
    folder = committed(tmp_path / "run", 7)
    archive = archive_of(objects_at(url))
    location = archive.put(folder)
    reader = CheckpointArchive(objects_at(url))
    (info,) = reader.list()
    assert (info.location, info.progress.step) == (location, 7)
    assert reader.fetch(7, tmp_path / "draft") == info
    for path in ("MANIFEST.json", "COMMIT", *FILES):
        assert (tmp_path / "draft" / path).read_bytes() == (folder / path).read_bytes()

    (tmp_path / "new/checkpoints").mkdir(parents=True)
    (tmp_path / "draft").rename(tmp_path / "new/checkpoints/checkpoint-7")
    loaded = DiskStateStore(tmp_path / "new", Retention(1)).load()
    assert (loaded.info.progress, loaded.rejected) == (info.progress, ())


@NEAR
def test_copies_are_listed_by_step(url, tmp_path):
    """The list is by step, not by name, and an archive in which nothing is yet has none."""
    archive = archive_of(objects_at(url))
    assert archive.list() == []
    for step in (10, 9, 100):
        archive.put(committed(tmp_path / f"{step}", step))
    assert [info.progress.step for info in archive.list()] == [9, 10, 100]


def test_a_second_put_does_nothing(url, tmp_path):
    """A checkpoint that is archived already is neither uploaded nor read again."""
    folder = committed(tmp_path, 7)
    objects = WatchedObjects(objects_at(url))
    archive = archive_of(objects)
    first = archive.put(folder)
    objects.done.clear()
    assert archive.put(folder) == first
    assert objects.called("upload") == objects.called("chunks") == objects.called("create") == []


def test_an_object_that_is_there_is_never_changed(url, tmp_path):
    """Of two that create an object the second changes nothing, be it a late upload of a writer that lost the lease."""
    objects = objects_at(url)
    (tmp_path / "file").write_bytes(b"late")
    assert objects.create("checkpoint-7/model", b"first")
    assert not objects.create("checkpoint-7/model", b"second")
    assert objects.create("checkpoint-7/model", b"first")
    objects.upload("checkpoint-7/model", tmp_path / "file")
    assert content_of(objects) == {"checkpoint-7/model": b"first"}


def test_a_put_that_is_told_to_stop_goes_on_later(url, tmp_path):
    """What was brought there before a stop counts for nothing by itself, and need not be brought again."""
    folder = committed(tmp_path, 7)
    objects = WatchedObjects(objects_at(url))
    archive = archive_of(objects)
    answers = iter([False, False, True])
    assert archive.put(folder, should_stop=lambda: next(answers)) is None
    before = objects.called("upload")
    assert len(before) == 2
    assert archive.list() == []
    objects.done.clear()
    assert archive.put(folder) is not None
    assert set(objects.called("upload")) == {f"checkpoint-7/{path}" for path in FILES} - set(before)
    assert len(archive.list()) == 1


@NEAR
@pytest.mark.parametrize(
    "left", [b"short", FILES["model"][::-1], FILES["model"] + b"more"], ids=["short", "other", "long"]
)
def test_what_differs_is_replaced(url, tmp_path, left):
    """An object that an upload has left with other bytes, another manifest and a torn COMMIT are replaced."""
    objects = objects_at(url)
    for path, data in {"model": left, "MANIFEST.json": b"{}", "COMMIT": b"blake3:", "alien": b"a"}.items():
        objects.create(f"checkpoint-7/{path}", data)
    archive = archive_of(objects)
    archive.put(committed(tmp_path, 7))
    assert {path: data for path, data in content_of(objects, "checkpoint-7").items() if "." not in path} == {
        f"checkpoint-7/{path}": data for path, data in FILES.items()
    } | {"checkpoint-7/COMMIT": commit_of(objects.read("checkpoint-7/MANIFEST.json"))}
    archive.fetch(7, tmp_path / "draft")


@NEAR
def test_another_checkpoint_of_that_step_is_left_alone(url, tmp_path):
    """Where another checkpoint is committed under the name, putting is an error and changes nothing."""
    objects = objects_at(url)
    archive = archive_of(objects)
    archive.put(committed(tmp_path / "one", 7))
    before = content_of(objects, "checkpoint-7")
    with pytest.raises(StateError, match=r"checkpoint-7 is another checkpoint"):
        archive.put(committed(tmp_path / "two", 7, OTHER))
    assert content_of(objects, "checkpoint-7") == before


@NEAR
def test_a_damaged_folder_is_not_archived(url, tmp_path):
    """Nothing of a local checkpoint that does not verify is uploaded."""
    folder = committed(tmp_path, 7)
    (folder / "model").write_bytes(FILES["model"][::-1])
    objects = WatchedObjects(objects_at(url))
    with pytest.raises(StateError, match="damaged: wrong-hash: 'model'"):
        archive_of(objects).put(folder)
    assert objects.called("upload") == []


@NEAR
def test_without_the_lease_nothing_is_written(url, tmp_path):
    """An archive that was opened for reading refuses whatever changes it."""
    objects = objects_at(url)
    archive = CheckpointArchive(objects)
    folder = committed(tmp_path, 7)
    for change in (lambda: archive.put(folder), lambda: archive.delete(7), archive.sweep):
        with pytest.raises(StateError, match="opened for reading"):
            change()
    assert content_of(objects) == {}


DAMAGES = {
    "other bytes": ("model", FILES["model"][::-1]),
    "fewer bytes": ("optimizer/state", b"half"),
    "missing": ("rng/rank-00000", None),
    "other manifest": ("MANIFEST.json", b"{}"),
    "no manifest": ("MANIFEST.json", None),
    "other COMMIT": ("COMMIT", commit_of(b"")),
    "torn COMMIT": ("COMMIT", b"blake3:"),
}


@NEAR
@pytest.mark.parametrize(("path", "data"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_copy_is_named_and_not_fetched(url, tmp_path, path, data):
    """A copy that is not what was saved is told with the object's name, and nothing of it stays on the disk."""
    objects = objects_at(url)
    archive = archive_of(objects)
    archive.put(committed(tmp_path / "run", 7))
    objects.remove(f"checkpoint-7/{path}")
    if data is not None:
        objects.create(f"checkpoint-7/{path}", data)
    damaged = "COMMIT" if path == "MANIFEST.json" and data else path
    with pytest.raises(CorruptCheckpoint) as caught:
        archive.fetch(7, tmp_path / "draft")
    assert objects.name(f"checkpoint-7/{damaged}") in str(caught.value)
    assert not (tmp_path / "draft").exists()


@NEAR
@pytest.mark.parametrize("path", ["../outside", "/outside", "a/../../outside", "COMMIT"])
def test_no_manifest_leads_out_of_the_draft(url, tmp_path, path):
    """A forged manifest that lists a path outside the checkpoint is refused before a file is opened."""
    folder = committed(tmp_path / "run", 7)
    record = json.loads((folder / "MANIFEST.json").read_bytes())
    record["files"][0]["path"] = path
    data = json.dumps(record).encode()
    objects = objects_at(url)
    objects.create("checkpoint-7/MANIFEST.json", data)
    objects.create("checkpoint-7/COMMIT", commit_of(data))
    with pytest.raises(CorruptCheckpoint, match="not a normal path"):
        CheckpointArchive(objects).fetch(7, tmp_path / "draft")
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name not in {"archive", "run"}) == []


@dataclass
class StopAt:
    """Raises in place of the removal of that number of an object of step 7, counting from 0."""

    number: int
    removed: int = 0

    def __call__(self, name, key, operation):
        if name == "remove" and key.startswith("checkpoint-7"):
            if self.removed == self.number:
                raise KeyboardInterrupt
            self.removed += 1
        return operation()


@NEAR
def test_what_is_deleted_never_counts_in_part(url, tmp_path):
    """Cut short behind any of its operations, a deletion leaves a whole copy or none; a sweep deletes the rest."""
    folder = committed(tmp_path / "run", 7)
    kept = committed(tmp_path / "run", 8)
    objects = objects_at(url)
    archive = archive_of(objects)
    archive.put(kept)
    for last in range(len(FILES) + 2):
        archive.put(folder)
        archive._objects = WatchedObjects(objects, StopAt(last))
        with pytest.raises(KeyboardInterrupt):
            archive.delete(7)
        assert [info.progress.step for info in archive.list()] == ([8] if last else [7, 8])
        archive._objects = objects
        archive.delete(7) if last == 0 else archive.sweep()
        assert objects.find("checkpoint-7") == {}
    assert [info.progress.step for info in archive.list()] == [8]


def test_a_sweep_deletes_uncommitted_uploads_only(url, tmp_path):
    """What bears no checkpoint's name stays, and so does every copy that counts."""
    objects = objects_at(url)
    archive = archive_of(objects)
    archive.put(committed(tmp_path / "run", 7))
    stay = content_of(objects, "checkpoint-7") | {"notes/checkpoint-1": b"mine", "checkpoint-x/a": b"mine"}
    for key in ("notes/checkpoint-1", "checkpoint-x/a"):
        objects.create(key, b"mine")
    left = ("checkpoint-3/model", "checkpoint-4/MANIFEST.json", "checkpoint-4/rng/rank-00000", "checkpoint-5/COMMIT")
    for key in left:
        objects.create(key, b"half")
    archive.sweep()
    assert {key: data for key, data in content_of(objects).items() if not key.startswith("lease/")} == stay


def test_a_swept_folder_leaves_no_empty_folders(tmp_path):
    """In a folder nothing stays of a copy that was deleted."""
    archive = archive_of(objects_at(str(tmp_path / "archive")))
    archive.put(committed(tmp_path / "run", 7))
    archive.delete(7)
    assert [path.name for path in (tmp_path / "archive").iterdir()] == ["lease"]


def test_a_store_whose_tags_say_nothing_is_read_back(url, tmp_path):
    """Where the tag of a store is not that of the bytes, the bytes themselves are compared."""

    def retag(name, _, operation):
        result = operation()
        return ObjectInfo(result.size, "0" * 32) if name == "info" and result else result

    objects = WatchedObjects(objects_at(url), retag)
    archive = archive_of(objects)
    archive.put(committed(tmp_path, 7))
    assert len(objects.called("chunks")) == len(FILES)
    assert len(archive.list()) == 1


def large(monkeypatch, folder):
    """Return a committed checkpoint with a file that S3 takes in three parts."""
    monkeypatch.setattr(checksum, "_PART", 5 << 20)
    return committed(folder, 7, {"model": bytes(11 << 20), "small": b"s"})


def test_a_file_in_parts_is_verified_by_its_tag(server, tmp_path, monkeypatch):
    """S3's tag of an upload in parts is computed here too, so nothing is read back."""
    objects = WatchedObjects(objects_at(f"s3://{server.bucket}/parts"))
    archive = archive_of(objects)
    archive.put(large(monkeypatch, tmp_path))
    assert objects.info("checkpoint-7/model").tag.endswith("-3")
    assert objects.called("chunks") == []
    assert archive.fetch(7, tmp_path / "draft").num_bytes == (11 << 20) + 1


def test_a_sweep_ends_uploads_that_nobody_goes_on_with(server):
    """Unfinished uploads in parts under the archive's checkpoints are aborted, those of others are not."""
    files = server.files()
    keys = ["mine/checkpoint-7/model", "mine/other/checkpoint-7", "mine-too/checkpoint-7/model"]
    for key in keys:
        files.call_s3("create_multipart_upload", Bucket=server.bucket, Key=key)
    archive_of(objects_at(f"s3://{server.bucket}/mine")).sweep()
    assert sorted(upload["Key"] for upload in files.list_multipart_uploads(server.bucket)) == sorted(keys[1:])


def test_a_bucket_that_is_not_there_is_an_error(server, tmp_path):
    """A bucket that is missing is told by name, and is not an archive in which nothing is yet."""
    objects = objects_at("s3://nowhere-to-be-found/run")
    with pytest.raises(StateError, match=r"s3://nowhere-to-be-found/run could not be listed"):
        CheckpointArchive(objects).list()
    with pytest.raises(StateError, match=r"nowhere-to-be-found"):
        archive_of(objects).put(committed(tmp_path, 7))


def test_no_message_holds_a_secret():
    """Keys in a URL are refused where they would be taken for a bucket's name, and no message repeats them."""
    for url in ("s3://AKIAHUSH:hush/hush+secret@bucket/run", "gs://hush@bucket", "nowhere://me:hush@host/run"):
        with pytest.raises((StateError, ConfigurationError)) as caught:
            open_object_store(url, mask=mask_text)
        assert "hush" not in str(caught.value).lower()


def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch):
    """A fetch for which the disk has no room is an error that says so, and leaves nothing."""
    objects = objects_at(str(tmp_path / "archive"))
    archive = archive_of(objects)
    archive.put(committed(tmp_path / "run", 7))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateError, match="step 7 could not be fetched"):
        archive.fetch(7, tmp_path / "file/draft")
    shutil.rmtree(tmp_path / "run")
    assert Path(tmp_path / "file").is_file()
