"""The checks of ``doctor`` on a real S3 server, and on one that never answers."""

import pytest
from s3fs import S3FileSystem

from holdfast.bootstrap.doctor.diagnosis import archive_checks, data_checks, perform_together
from holdfast.bootstrap.doctor.finding import CheckVerdict
from tests.support.black_hole import black_hole
from tests.support.planted_troubles import settings_of
from tests.support.s3_server import s3_server

SECONDS = 60.0  # every place here answers, on a busy machine later


@pytest.fixture(scope="module")
def server():
    """Yield a server with the bucket ``corpus``."""
    with s3_server() as server:
        yield server


def found_for(checks):
    """Return the only finding of the ``checks``."""
    (finding,) = perform_together([*checks])
    return finding


def archive_at(url, *more):
    """Return the settings of a run with an archive at ``url``."""
    return settings_of(f"state_store.archive.url={url}", "run.name=probed", *more)


def test_an_archive_that_can_be_written_is_ok_and_left_empty(server):
    """The object that the check writes is deleted again, and the finding is ok."""
    finding = found_for(archive_checks(archive_at("s3://corpus/runs"), SECONDS))
    assert finding.verdict is CheckVerdict.OK, finding
    assert server.files().find("corpus/runs") == []


def test_an_archive_without_the_role_to_write_is_only_asked(server):
    """Without the roles to write and delete nothing is written."""
    finding = found_for(archive_checks(archive_at("s3://corpus/runs", "state_store.roles=[read]"), SECONDS))
    assert finding.verdict is CheckVerdict.OK, finding
    assert "answers" in finding.detail


def test_a_missing_bucket_is_named(server):
    """An archive or data in a bucket that does not exist is an error whose remedy names the setting."""
    finding = found_for(archive_checks(archive_at("s3://no-such-bucket-here/runs"), SECONDS))
    assert finding.verdict is CheckVerdict.ERROR, finding
    assert "state_store.archive.url" in finding.remedy
    finding = found_for(data_checks(settings_of("data.path=s3://no-such-bucket-here/*.jsonl"), SECONDS))
    assert finding.verdict is CheckVerdict.ERROR, finding
    assert "data.path" in finding.remedy


@pytest.mark.parametrize("path", ["s3://corpus/there/a.jsonl", "s3://corpus/there/*.jsonl", "s3://corpus/there"])
def test_data_in_a_bucket_are_found(server, path):
    """A file, a glob and a folder are found without being listed."""
    server.put("there/a.jsonl", b"{}\n")
    assert found_for(data_checks(settings_of(f"data.path={path}"), SECONDS)).verdict is CheckVerdict.OK


def test_a_server_that_never_answers_is_an_error_at_the_limit(server, monkeypatch):
    """A bucket behind a server that is silent is an error within the time limit."""
    with black_hole() as hole:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{hole.port}")
        S3FileSystem.clear_instance_cache()
        finding = found_for(data_checks(settings_of("data.path=s3://corpus/there/*.jsonl"), 2.0))
    S3FileSystem.clear_instance_cache()
    assert finding.verdict is CheckVerdict.ERROR
    assert "no answer came in 1.0 s" in finding.detail
