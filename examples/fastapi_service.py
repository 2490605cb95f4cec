"""An HTTP service that trains one run at a time: it starts and stops runs, and streams their events.

pip install fastapi uvicorn
python examples/fastapi_service.py FOLDER [--port 8000] [key.path=value ...]

POST /runs {"name": "mine", "steps": 100}    starts a run in FOLDER/mine, or continues it; 409 while another trains
GET  /runs                                   the run that trains or was the last one, its step and its newest metrics
GET  /runs/events                            its events from now on, as server-sent events, until it ends
POST /runs/stop                              saves, stops, and returns the progress
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from holdfast import AsyncRun, EventStream, build_async, load_settings
from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from holdfast.domain.events import Event
    from holdfast.domain.training.step_outcome import Progress


class NewRun(BaseModel):
    """The choices of a user: all other settings are those of the service."""

    name: Annotated[str, Field(pattern="^[a-z0-9-]{1,40}$")]
    steps: Annotated[int, Field(gt=0)]


class TrainingQueue:
    """The one run that trains, as torch's random state belongs to the process."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self._folder = folder
        self._settings = settings
        self._run: AsyncRun | None = None
        self._task: asyncio.Task[Progress] | None = None
        self.state: dict[str, Any] = {"state": "idle"}

    def start(self, new: NewRun) -> None:
        """Start to train; raises ``HTTPException`` if a run trains already or the settings are wrong."""
        if self._task is not None and not self._task.done():
            raise HTTPException(409, f"the run {self.state['name']} is training: wait for it, or stop it")
        own = [f"run.dir={self._folder / new.name}", f"run.budget.steps={new.steps}"]
        try:
            run = build_async(load_settings([], [*self._settings, *own], {}).settings, is_quiet=True)
        except TrainingError as error:
            raise HTTPException(422, str(error)) from error
        self.state = {"name": new.name, "state": "training", "step": 0}
        run.on_progress(lambda progress: self.state.update(step=progress.step))
        run.on_metrics(self._on_metrics)
        self._run, self._task = run, asyncio.create_task(run.run_async())
        self._task.add_done_callback(self._on_end)

    async def stop(self) -> None:
        """Save, stop, and wait for it; raises ``HTTPException`` if no run trains."""
        if self._run is None or self._task is None or self._task.done():
            raise HTTPException(409, "no run is training")
        self._run.request_stop("a user asked for it")
        await asyncio.wait([self._task])

    def events(self) -> AsyncIterator[str]:
        """Return the events of the run from now on as server-sent events; raises ``HTTPException`` without a run."""
        if self._run is None:
            raise HTTPException(404, "no run has been started")
        return self._sent(self._run.events())

    async def _sent(self, stream: EventStream[Event]) -> AsyncIterator[str]:
        try:
            async for event in stream:
                progress = getattr(event, "progress", None)
                data = {"event": type(event).__name__, "step": progress and progress.step}
                yield f"data: {json.dumps(data)}\n\n"
        finally:
            await stream.aclose()

    def _on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.state["metrics"] = {**self.state.get("metrics", {}), **metrics, "at": step}  # a step has several records

    def _on_end(self, task: asyncio.Task[Progress]) -> None:
        error = None if task.cancelled() else task.exception()
        self.state["state"] = "ended" if error is None else f"failed: {error}"
        if error is None and not task.cancelled():
            self.state["step"] = task.result().step


def service(folder: Path, settings: list[str]) -> FastAPI:
    """Return the application."""
    app, queue = FastAPI(title="Holdfast"), TrainingQueue(folder, settings)

    @app.post("/runs", status_code=201)
    async def start(new: NewRun) -> dict[str, Any]:
        queue.start(new)
        return queue.state

    @app.get("/runs")
    async def show() -> dict[str, Any]:
        return queue.state

    @app.get("/runs/events")
    async def events() -> StreamingResponse:
        return StreamingResponse(queue.events(), media_type="text/event-stream")

    @app.post("/runs/stop")
    async def stop() -> dict[str, Any]:
        await queue.stop()
        return queue.state

    return app


def main(folder: str, *arguments: str) -> None:
    """Serve on the loopback address until the process is stopped."""
    options, port = list(arguments), 8000
    if "--port" in options:
        place = options.index("--port")
        port = int(options[place + 1])
        del options[place : place + 2]
    uvicorn.run(service(Path(folder), options), host="127.0.0.1", port=port, log_level="info")


if __name__ == "__main__":
    if len(sys.argv) <= 1:
        print(f"usage: python {sys.argv[0]} FOLDER [--port 8000] [key.path=value ...]", file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
