"""Every published rule set keeps the port's promise."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.c4 import C4Transform
from holdfast.adapters.transform.fineweb import FinewebTransform
from holdfast.adapters.transform.gopher_quality import GopherQualityTransform
from holdfast.adapters.transform.gopher_repetition import GopherRepetitionTransform
from holdfast.ports.testing.transform import RecordTransformContract
from holdfast.ports.transform import Record

REPEATED = Record("The same line comes again and again in this text.\n" * 40)


class QualityRules(RecordTransformContract):
    examples = (REPEATED, Record("Short."))
    kind = GopherQualityTransform
    options = ({"min_stop_words": 1},)

    @pytest.fixture
    def new(self):
        return self.kind

    @pytest.fixture
    def others(self):
        return [self.kind(**options) for options in self.options]

    @pytest.fixture
    def rebuild(self):
        return f"from {self.kind.__module__} import {self.kind.__name__}\ntransform = {self.kind.__name__}()\n"


class TestGopherQuality(QualityRules):
    examples = (Record("Short."),)


class TestGopherRepetition(QualityRules):
    examples = (REPEATED,)
    kind = GopherRepetitionTransform
    options = ({"dup_line_frac": 0.2},)


class TestC4(QualityRules):
    examples = (Record("Short."), Record("Please enable javascript to read this page.\n" * 9))
    kind = C4Transform
    options = ({"min_num_sentences": 2},)


class TestFineweb(QualityRules):
    examples = (REPEATED,)
    kind = FinewebTransform
    options = ({"line_punct_thr": 0.2},)
