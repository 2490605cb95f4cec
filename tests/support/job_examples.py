"""Jobs of all shapes, and the programs that a job file calls."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import jsonschema

from holdfast.bootstrap.job_files.job import Job, Machine, Program, Volume
from tests.support.command_line import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = ("run.dir=/shared/runs/mine", 'sample.prompt=it\'s "quoted" $HOME `x` $(id)', "data.path=[a.jsonl, 'b c']")


def job(num_machines: int = 4, command: str = "train", **more: Any) -> Job:
    """Return a job with two GPUs a machine; ``more`` are fields of its machine, program or itself."""
    machine = {"gpus": 2, "processes": 2, "image": "your/holdfast", "accelerator": "H100"}
    program: dict[str, Any] = {"settings": SETTINGS}
    own: dict[str, Any] = {"name": "holdfast-mine"}
    for name, value in more.items():
        for fields, kind in ((machine, Machine), (program, Program), (own, Job)):
            if name in kind.__dataclass_fields__:
                fields[name] = value
                break
    return Job(num_machines=num_machines, machine=Machine(**machine), program=Program(command, **program), **own)


def jobs() -> Iterator[Job]:
    """Yield jobs of one and several machines, of runs and preparations, bare and with all that is optional."""
    full = {"cpus": 16, "variables": ("KEY", "HF_TOKEN"), "volumes": (Volume("claim", "/shared"), Volume("data", "/d"))}
    bare = {"gpus": 0, "processes": 1, "accelerator": None}
    for num_machines, command, more in itertools.product((1, 4), ("train", "prepare"), ({}, full, bare)):
        yield job(num_machines, command, **more)


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the published schema ``name``."""
    found: dict[str, Any] = json.loads((ROOT / f"tests/data/schemas/{name}.json").read_text(encoding="utf-8"))
    return found


def check(document: object, name: str, part: str | None = None) -> None:
    """Raise ``jsonschema.ValidationError`` if ``document`` is none of the schema ``name``, or of its ``part``."""
    whole = schema(name)
    rule = whole if part is None else {"$defs": whole["$defs"], "$ref": f"#/$defs/{part}"}
    jsonschema.validate(document, rule, cls=jsonschema.Draft202012Validator)
