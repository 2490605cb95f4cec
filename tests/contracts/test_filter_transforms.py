"""The transforms of records that filter and score keep the promises of their port."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.decontaminate import DecontaminateTransform
from holdfast.adapters.transform.language import LanguageTransform
from holdfast.adapters.transform.pii import PiiTransform
from holdfast.adapters.transform.score import ScoreTransform
from holdfast.adapters.transform.secrets import SecretsTransform
from holdfast.ports.testing.transform import RecordTransformContract
from holdfast.ports.transform import Record

_LEAK = "Natalia sold clips to 48 of her friends in April, and then half as many in May."


class TestLanguageTransform(RecordTransformContract):
    examples = (Record("Der Ausschuss traf sich am Dienstag."), Record(""), Record("委員会は火曜日に話し合いました。"))

    @pytest.fixture
    def new(self):
        return lambda: LanguageTransform(languages=["ja", "en", "ja"], min_confidence=1)

    @pytest.fixture
    def others(self):
        return [
            LanguageTransform(languages=["en"], min_confidence=1),
            LanguageTransform(languages=["en", "ja"]),
            LanguageTransform(languages=["en", "ja"], min_confidence=1, max_characters=100),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.language import LanguageTransform\n"
            "transform = LanguageTransform(languages=['en', 'ja'], min_confidence=1.0)\n"
        )


class TestPiiTransform(RecordTransformContract):
    examples = (Record("ann@example.org or +49 30 901820"), Record("8.8.8.8"), Record("DE89 3704 0044 0532 0130 00"))

    @pytest.fixture
    def new(self):
        return PiiTransform

    @pytest.fixture
    def others(self):
        return [PiiTransform(action="drop"), PiiTransform(find=["email"]), PiiTransform(marks={"ip": "IP"})]

    @pytest.fixture
    def rebuild(self):
        return "from holdfast.adapters.transform.pii import PiiTransform\ntransform = PiiTransform()\n"


class TestSecretsTransform(RecordTransformContract):
    examples = (Record("AKIA" + "IOSFODNN7EXAMPLE"), Record("api_key = 'Ab3dEf6hIj9kLm2nOp5qRs8t'"))

    @pytest.fixture
    def new(self):
        return SecretsTransform

    @pytest.fixture
    def others(self):
        return [
            SecretsTransform(action="drop"),
            SecretsTransform(find=["aws"]),
            SecretsTransform(mark="KEY"),
            SecretsTransform(min_entropy=3),
        ]

    @pytest.fixture
    def rebuild(self):
        return "from holdfast.adapters.transform.secrets import SecretsTransform\ntransform = SecretsTransform()\n"


class TestDecontaminateTransform(RecordTransformContract):
    examples = (Record(_LEAK), Record("é " * 20 + _LEAK.upper()))

    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "set.txt").write_text(_LEAK, encoding="utf-8")
        return str(tmp_path / "set.txt")

    @pytest.fixture
    def new(self, path):
        return lambda: DecontaminateTransform(files=[path])

    @pytest.fixture
    def others(self, path):
        return [DecontaminateTransform(files=[path], ngram=5), DecontaminateTransform(files=[path], max_share=0.1)]

    @pytest.fixture
    def rebuild(self, path):
        return (
            "from holdfast.adapters.transform.decontaminate import DecontaminateTransform\n"
            f"transform = DecontaminateTransform(files=[{path!r}], ngram=13)\n"
        )


class TestScoreTransform(RecordTransformContract):
    examples = (Record("ab"), Record("x" * 60))

    @pytest.fixture
    def new(self):
        return lambda: ScoreTransform(name="length", function=len, function_fingerprint="len 1", max=50)

    @pytest.fixture
    def others(self):
        return [
            ScoreTransform(name="length", function=len, function_fingerprint="len 1"),
            ScoreTransform(name="length", function=len, function_fingerprint="len 2", max=50),
            ScoreTransform(name="size", function=len, function_fingerprint="len 1", max=50),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.score import ScoreTransform\n"
            "transform = ScoreTransform(name='length', function=len, function_fingerprint='len 1', max=50.0)\n"
        )
