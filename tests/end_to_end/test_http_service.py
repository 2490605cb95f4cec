"""The example of an HTTP service, by a real client."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support.command_line import corpus, environment, tiny

ROOT = Path(__file__).parents[2]
STEPS = 100_000


@pytest.fixture
def address(tmp_path):
    """Start the service; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = tiny(corpus(tmp_path), "evaluation.every=0", "state_store.every=0")
    example = str(ROOT / "examples/fastapi_service.py")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, example, str(tmp_path / "runs"), "--port", str(port), *settings],
            env=environment(), stdout=log, stderr=log, cwd=tmp_path,
        )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


async def connect(client, address):
    for _ in range(600):
        try:
            async with client.get(f"{address}/runs") as answer:
                return await answer.json()
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.1)
    pytest.fail("the service did not answer within a minute")


async def told(client, address, enough):
    """Return the server-sent events until ``enough`` says so or the stream ends."""
    events = []
    async with client.get(f"{address}/runs/events") as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
                if enough(events[-1]):
                    break
    return events


async def post(client, address, path, **body):
    async with client.post(f"{address}{path}", json=body or None) as answer:
        return answer.status, await answer.json()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_users_train_in_turn(address, tmp_path):
    """One user starts, follows and stops a run; another is refused meanwhile, and trains afterwards to the end."""

    async def both():
        async with aiohttp.ClientSession() as client:
            assert await connect(client, address) == {"state": "idle"}
            assert (await post(client, address, "/runs", name="../out", steps=3))[0] == 422
            assert (await post(client, address, "/runs/stop"))[0] == 409
            assert (await post(client, address, "/runs", name="first", steps=STEPS))[0] == 201
            seen = await told(client, address, lambda event: event["step"] == 3)
            refused = await post(client, address, "/runs", name="second", steps=2)
            stopped = await post(client, address, "/runs/stop")
            assert (await post(client, address, "/runs", name="second", steps=2))[0] == 201
            rest = await told(client, address, lambda _: False)
            await asyncio.sleep(0.2)
            return seen, refused, stopped, rest, await connect(client, address)

    seen, refused, stopped, rest, last = asyncio.run(both())
    assert [event["step"] for event in seen if event["event"] == "StepCompleted"][-1] == 3
    assert refused == (409, {"detail": "the run first is training: wait for it, or stop it"})
    assert stopped[0] == 200
    assert stopped[1]["state"] == "ended"
    assert 3 <= stopped[1]["step"] < STEPS
    assert rest[-1]["event"] == "RunFinished"
    assert (last["name"], last["state"], last["step"]) == ("second", "ended", 2)
    assert last["metrics"]["loss"] > 0
    for name, step in (("first", stopped[1]["step"]), ("second", 2)):
        assert (tmp_path / f"runs/{name}/checkpoints/checkpoint-{step}/COMMIT").exists()
