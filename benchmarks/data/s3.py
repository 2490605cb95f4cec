"""An S3 server on this machine, as far away as one likes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BUCKET = "corpus"
_PIECE = 1 << 18


@contextlib.contextmanager
def far_storage(folder: str, latency: float) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Serve the files of ``folder`` by S3, each request ``latency`` seconds late.

    Gives the URL of the files, and the variables of the environment that lead there.
    """
    with _started("serve") as near, _started("delay", near, str(latency)) as far:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{far}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        subprocess.run(
            [sys.executable, "-m", "benchmarks.data.s3", "upload", near, folder],
            env=dict(os.environ) | environment,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        yield f"s3://{BUCKET}", environment


@contextlib.contextmanager
def _started(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.data.s3", *arguments]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            assert port, f"{' '.join(command)} did not start"
            yield port
        finally:
            process.terminate()


def _serve() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    while True:
        time.sleep(60)


def _upload(port: str, folder: str) -> None:
    from s3fs import S3FileSystem

    files = S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}")
    files.makedirs(BUCKET, exist_ok=True)
    for path in sorted(Path(folder).iterdir()):
        files.pipe_file(f"{BUCKET}/{path.name}", path.read_bytes())


async def _delay(port: str, latency: str) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(port))
        await asyncio.gather(_pass_on(reader, far_writer, float(latency)), _pass_on(far_reader, writer, 0.0))

    server = await asyncio.start_server(connect, "127.0.0.1", 0, limit=_PIECE)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            await asyncio.sleep(seconds)
            writer.write(piece)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            _serve()
        case ["upload", port, folder]:
            _upload(port, folder)
        case ["delay", port, latency]:
            asyncio.run(_delay(port, latency))
