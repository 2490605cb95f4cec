"""The data configuration that Vorox's documentation prints."""

from __future__ import annotations

import json
from contextlib import closing

from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase
from tests.support.command_line import ROOT, corpus, run_here, tiny

CONFIGURATION = ROOT / "tests" / "vorox.yaml"
PARTS = ("s3://bucket/train_part1.txt", "s3://bucket/train_part2.txt")
DSN = "postgresql://user:pass@host:port/db"


def local_copies(folder):
    """Write two .txt files of documents, which blank lines separate; return their paths."""
    texts = [json.loads(line)["text"] for line in corpus(folder).read_text().splitlines()]
    paths = [folder / "train_part1.txt", folder / "train_part2.txt"]
    for number, path in enumerate(paths):
        path.write_text("\n\n".join(texts[number::2]))
    return paths


def test_it_trains_as_its_document_writes_it(tmp_path, postgres):
    """With copies of its files and a database that is there, the run is named dolma, and the ledger has its steps."""
    dsn = postgres.new_database()
    text = CONFIGURATION.read_text().replace(DSN, dsn)
    for url, path in zip(PARTS, local_copies(tmp_path), strict=True):
        assert url in text
        text = text.replace(url, str(path))
    (tmp_path / "vorox.yaml").write_text(text)
    own = ("run.name", "data.kind", "data.path")
    chosen = [setting for setting in tiny(tmp_path / "none") if setting.partition("=")[0] not in own]
    trained = run_here("train", "--config", "vorox.yaml", *chosen, "run.name=vorox", "run.budget.steps=3", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    record = json.loads((tmp_path / "runs/vorox/run.json").read_text())
    assert (record["settings"]["data"]["label"], record["settings"]["data"]["prefetch_samples"]) == ("dolma", 1000)
    with closing(SqlLedger(PostgresDatabase(dsn, LEDGER))) as ledger:
        assert ledger.steps(record["id"]).step.tolist() == [1, 2, 3]
        sources = ledger.source_counts(record["id"], 0)
    assert "dolma" in str(sources)
