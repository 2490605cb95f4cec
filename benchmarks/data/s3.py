"""Storage that speaks S3, as far away as one likes: of this machine's cores it takes what is left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aiohttp.web import Request, StreamResponse

BUCKET = "corpus"


@contextlib.contextmanager
def far_storage(folder: str, latency: float) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Serve the files of ``folder`` by S3, each answer ``latency`` seconds late.

    The server knows but what reading takes: GET with ranges and conditions, HEAD, and ListObjectsV2. Gives the URL of
    the files, and the variables of the environment that lead there.
    """
    command = [sys.executable, "-m", "benchmarks.data.s3", folder, str(latency)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            assert port, "the storage did not start"
            yield (
                f"s3://{BUCKET}",
                {
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": "benchmark",
                    "AWS_SECRET_ACCESS_KEY": "benchmark",
                    "AWS_DEFAULT_REGION": "us-east-1",
                    "AWS_EC2_METADATA_DISABLED": "true",
                },
            )
        finally:
            process.terminate()


async def _serve(folder: Path, latency: float) -> None:
    from aiohttp import web

    os.nice(19)  # one that is far away would take none of the cores on which it is measured

    async def answer(request: Request) -> StreamResponse:
        await asyncio.sleep(latency)
        path = folder / Path(request.match_info["key"]).name
        if not request.match_info["key"]:
            return web.Response(text=_listing(folder), content_type="application/xml")
        return web.FileResponse(path) if path.is_file() else web.Response(status=404)

    app = web.Application()
    app.router.add_get(f"/{BUCKET}{{slash:/?}}{{key:.*}}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def _listing(folder: Path) -> str:
    files = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    contents = "".join(
        f"<Contents><Key>{escape(name)}</Key><Size>{status.st_size}</Size>"
        f"<LastModified>{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%dT%H:%M:%SZ}</LastModified>"
        f'<ETag>"{status.st_mtime_ns:x}-{status.st_size:x}"</ETag></Contents>'  # as aiohttp marks a file
        for name, status in files
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><KeyCount>{len(files)}</KeyCount><IsTruncated>false</IsTruncated>{contents}"
        "</ListBucketResult>"
    )


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), float(sys.argv[2])))
