"""Every transform keeps the port's promise."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.augment import AugmentTransform
from holdfast.adapters.transform.length import LengthTransform
from holdfast.adapters.transform.memory import MemoryTransform
from holdfast.adapters.transform.normalize import NormalizeTransform
from holdfast.adapters.transform.replace import ReplaceTransform
from holdfast.ports.testing.transform import TransformContract


class TestMemoryTransform(TransformContract):
    examples = ("upper case",)

    @pytest.fixture
    def new(self):
        return lambda: MemoryTransform(str.upper, "upper 1")

    @pytest.fixture
    def others(self):
        return [MemoryTransform(str.lower, "lower 1"), MemoryTransform(str.upper, "upper 2")]

    @pytest.fixture
    def rebuild(self):
        module = "from holdfast.adapters.transform.memory import MemoryTransform\n"
        return f"{module}transform = MemoryTransform(str.upper, 'upper 1')\n"


class TestLengthTransform(TransformContract):
    examples = ("", "abcd", "a" * 11)

    @pytest.fixture
    def new(self):
        return lambda: LengthTransform(min_characters=5, max_characters=10)

    @pytest.fixture
    def others(self):
        return [
            LengthTransform(min_characters=6, max_characters=10),
            LengthTransform(min_characters=5, max_characters=11),
            LengthTransform(min_characters=5),
            LengthTransform(max_characters=10),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.length import LengthTransform\n"
            "transform = LengthTransform(max_characters=10, min_characters=5)\n"
        )


class TestNormalizeTransform(TransformContract):
    examples = ("e\u0301", "a\r\nb")

    @pytest.fixture
    def new(self):
        return NormalizeTransform

    @pytest.fixture
    def others(self):
        return [NormalizeTransform(form="NFKC")]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.normalize import NormalizeTransform\ntransform = NormalizeTransform()\n"
        )


class TestReplaceTransform(TransformContract):
    examples = ("tel. 555-1234", "1-1 and 22-22")

    @pytest.fixture
    def new(self):
        return lambda: ReplaceTransform(pattern=r"(\d+)-\d+", replacement=r"<\1>")

    @pytest.fixture
    def others(self):
        return [
            ReplaceTransform(pattern=r"(\d+)-\d+", replacement=r"\1"),
            ReplaceTransform(pattern=r"(\d)-\d+", replacement=r"<\1>"),
            ReplaceTransform(pattern=r"(\d+)-\d+", replacement=r"<\1>", seconds=1),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.replace import ReplaceTransform\n"
            r"transform = ReplaceTransform(replacement='<\\1>', pattern='(\\d+)-\\d+')"
            "\n"
        )


class TestAugmentTransform(TransformContract):
    examples = ("one two. three four.\nfive six.", "def f(x):\n    return x\n")

    @pytest.fixture
    def new(self):
        return lambda: AugmentTransform(probability=1, noise=0.9, fim_rate=1)

    @pytest.fixture
    def others(self):
        return [
            AugmentTransform(probability=1, noise=0.9),
            AugmentTransform(probability=1, noise=0.8, fim_rate=1),
            AugmentTransform(probability=1, noise=0.9, fim_rate=1, seed=1),
            AugmentTransform(probability=1, noise=0.9, fim_rate=1, fim_spm_rate=1),
            AugmentTransform(probability=1, noise=0.9, fim_rate=1, fim_marks={"prefix": "<PRE>"}),
            AugmentTransform(probability=1, noise=0.9, fim_rate=1, weights={"case": 1}),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.augment import AugmentTransform\n"
            "transform = AugmentTransform(fim_rate=1.0, noise=0.9, probability=1)\n"
        )
