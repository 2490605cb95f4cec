"""What a run tells of the data that it reads."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.bootstrap import build
from holdfast.bootstrap.cli.main import main
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import corpus, tiny


def train(home, *more):
    """Train on the corpus below ``home``; return the lines of ``metrics.jsonl``."""
    overrides = tiny(
        home / "corpus.jsonl",
        f"run.dir={home / 'run'}",
        "data.on_error=skip",
        "data.holdout=0",
        "monitors=[jsonl]",
        *more,
    )
    build(load_settings([], overrides, {}).settings).run()
    return [json.loads(line) for line in (home / "run/metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_run_goes_on_without_a_bad_record_and_counts_it(tmp_path, mode):
    """With ``skip`` the last step tells of one record left out and of what was read; a resumed run counts it once."""
    path = corpus(tmp_path)
    good = path.read_bytes()
    path.write_bytes(b'{"id": -1}\n' + good)
    settings = (f"data.mode={mode}", "state_store.every=0")
    first = train(tmp_path, *settings, "run.budget.steps=3")[-1]
    assert (first["step"], first["rejected"], first["read_retries"]) == (3, 1, 0)
    assert first["bytes_read"] >= len(good)
    again = train(tmp_path, *settings, "run.budget.steps=5")
    assert [line["step"] for line in again] == [1, 2, 3, 4, 5]
    assert again[-1]["rejected"] == 1
    looked_at = again[-1]["bytes_read"] <= path.stat().st_size  # at the first records, for fields that are not used
    assert looked_at if mode == "cache" else again[-1]["bytes_read"] > 0
    rejected = (tmp_path / "run/rejected.jsonl").read_text().splitlines()
    assert len(rejected) == 1
    assert "'text' is missing" in json.loads(rejected[0])["reason"]


def damaged(home, rows=100):
    """Write a table of ``rows`` rows whose footer is whole and whose first page is not, and two bad records of lines.

    One of them is in another encoding; return the settings that read them with a good corpus.
    """
    good = corpus(home)
    table = home / "table.parquet"
    pq.write_table(
        pa.table({"text": [f"row {number} of a table" for number in range(rows)]}), table, compression="gzip"
    )
    content = bytearray(table.read_bytes())
    content[4:40] = bytes(36)
    table.write_bytes(content)
    bad = home / "bad.jsonl"
    bad.write_bytes('{"text": "größer"}\n'.encode("cp1252") + b'{"no": 1}\n')
    return tiny(good, f"data.path=[{good}, {table}, {bad}]", "data.on_error=skip", "data.holdout=0")


LOST = "1 file, or part of one, not read to the end: 100 records left out with it"
ENCODING = "1 not in the encoding: set data.encoding to that of the files, or convert them"


def test_lost_files_and_encodings_are_told_apart_from_refused_records(tmp_path, capsys):
    """The closing lines count a lost table by the rows of its footer, and records that do not decode for themselves."""
    settings = damaged(tmp_path)
    for command in (("data", "validate"), ("prepare",)):
        assert main([*command, *settings]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert LOST in shown
        assert ENCODING in shown
        assert "1 unusable" in shown
    assert "2 records left out:" in shown


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_the_summary_of_a_run_says_what_was_left_out(tmp_path, mode, capsys):
    """A whole epoch in either mode ends with the same counts."""
    run = [f"run.dir={tmp_path / 'run'}", f"data.mode={mode}", "data.epochs=1", "run.budget.steps=300"]
    assert main(["train", *damaged(tmp_path), *run]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert LOST in shown
    assert "1 record: not in the encoding: set data.encoding" in shown
    assert "1 record: unusable" in shown
