"""A simulated S3 outage: requests are refused for some time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.verification.fault_catalog import BUSY_ANSWERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_CALM_ANSWERS = 6


def busy(happened: Sequence[Path]) -> None:
    """Make requests of this process to S3 fail with 503, a number of them for each file of ``happened`` not there yet.

    Between two series of failures some requests succeed, so that no client gives up. All reads from S3 go through
    s3fs, whose class is replaced in fsspec's registry.
    """
    pending = [path for path in happened if not path.exists()]
    if not pending:
        return
    import fsspec
    from botocore.exceptions import ClientError
    from s3fs import S3FileSystem
    from s3fs.errors import translate_boto_error

    answer = {"Error": {"Code": "SlowDown", "Message": "drill"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
    left = [place for path in pending for place in (*[path] * BUSY_ANSWERS, *[None] * _CALM_ANSWERS)]

    class BusyS3FileSystem(S3FileSystem):  # type: ignore[misc]  # it has no types
        """Refuses the requests that are next in ``left`` with the error of a busy server."""

        async def _call_s3(self, method: str, *parts: Any, **options: Any) -> Any:
            happened_now = left.pop(0) if left else None
            if happened_now is not None:
                happened_now.touch()
                raise translate_boto_error(ClientError(answer, method))
            return await super()._call_s3(method, *parts, **options)

    fsspec.register_implementation("s3", BusyS3FileSystem, clobber=True)
