"""The extras of this package that settings need."""

import tomllib

import pytest

from holdfast.bootstrap.doctor.needed_extras import needed_extras
from tests.support.command_line import ROOT
from tests.support.planted_troubles import settings_of

OF_OTHER_COMMANDS = {"bench", "dev", "docs", "gguf", "test", "torchao", "tune"}
NEEDS = {
    "bnb": ["optimizer.algorithm=adamw_8bit"],
    "datasets": ["data.kind=huggingface", "data.path=owner/name"],
    "dedup": ["data.path=texts", "data.dedup.kind=minhash"],
    "deepspeed": ["optimizer.kind=deepspeed"],
    "encryption": ["state_store.encryption.key_from=env:KEY"],
    "eval": ["evaluation.suites=[hellaswag]"],
    "fast": ["tokenizer.backend=gigatoken"],
    "fp8": ["optimizer.precision=fp8"],
    "gcs": ["data.path=gs://bucket/a.jsonl"],
    "http": ["evaluation.sets={news: {path: 'https://example.org/a.jsonl'}}"],
    "language": ["data.path=texts", "data.transforms=[language]"],
    "lineage": ["data.lineage.file=events.jsonl"],
    "lion": ["optimizer.algorithm=lion"],
    "lora": ["model.path=./folder", "model.lora={rank: 8}"],
    "mlflow": ["monitors=[mlflow]"],
    "page": ["monitors=[page]"],
    "parquet": ["data.sources={a: {path: texts/a.parquet}}"],
    "postgres": ["ledger={kind: postgres, dsn: 'env:DSN'}"],
    "prometheus": ["monitors=[prometheus]"],
    "ray": ["distributed.kind=ray"],
    "s3": ["state_store.archive.url=s3://bucket/runs"],
    "tensorboard": ["monitors=[tensorboard]"],
    "trackio": ["monitors=[trackio]"],
    "wandb": ["monitors=[wandb]"],
}


@pytest.mark.parametrize("extra", NEEDS)
def test_settings_name_their_extra(extra):
    """The extra is needed by these settings, the setting that needs it is told, and the defaults need none."""
    needed = needed_extras(settings_of(*NEEDS[extra]))
    assert extra in needed
    assert needed[extra]
    assert needed_extras(settings_of()) == {}


def test_every_extra_of_a_run_is_known():
    """Each extra of pyproject.toml is needed by some settings of the table, or belongs to another command."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras.keys() == NEEDS.keys() | OF_OTHER_COMMANDS
