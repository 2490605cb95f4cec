"""When a launch of several processes is repeated."""

import json

import pytest

from holdfast.bootstrap.process import launch


def launches(monkeypatch, record, starts):
    """Let each start leave so many rows in ``record``, None for no record, and end with its code."""
    left = list(starts)

    def start(*_, **__):
        rows, code = left.pop(0)
        if rows is not None:
            record.write_text(json.dumps({"rows": rows, "shortages": {str(rows + 1): len(left)}}))
        return code

    monkeypatch.setattr(launch, "launch", start)
    return left


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([(8, 75), (4, 1), (4, 0)], 0),  # the process that fell short is not always the first to end
        ([(8, 75), (4, 2)], 2),
        ([(8, 143)], 143),
        ([(1, 1), (1, 1)], 1),  # nothing smaller is left
        ([(None, 1)], 1),
    ],
)
def test_a_shortage_starts_all_again(tmp_path, monkeypatch, starts, expected):
    """As long as a failed start leaves a smaller size, all start again; nothing follows an end that was wanted."""
    record, said = tmp_path / "micro-batch.json", []
    left = launches(monkeypatch, record, starts)
    assert launch.launch_until_memory_fits([], 2, record, said.append) == expected
    assert (len(said), left) == (len(starts) - 1, [])
