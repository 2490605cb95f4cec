"""Validation keeps the promise of ``RecordTransform``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.adapters.transform.field_rules import FieldRule, FieldRules
from holdfast.adapters.transform.validation import OutlierBounds, ValidationTransform
from holdfast.ports.testing.transform import RecordTransformContract
from holdfast.ports.transform import Record

URL = FieldRules("url", (FieldRule("missing", None, "warn"), FieldRule("pattern", "^https?://", "reject")))
LANGUAGE = FieldRules("lang", (FieldRule("one_of", ["en", "de"], "stop"),))
LENGTH = OutlierBounds("length", 3, 2000, "reject")
SYMBOLS = OutlierBounds("symbols", None, 0.5, "warn")


class TestValidationTransform(RecordTransformContract):
    examples = (
        Record("a text"),
        Record("a text", {"url": "ftp://a"}),
        Record("a text", {"url": "http://a", "lang": "fr"}),
        Record("a", {"url": "http://a"}),
        Record("?!?!", {"url": "http://a", "lang": "de"}),
    )

    @pytest.fixture
    def new(self):
        return lambda: ValidationTransform([URL, LANGUAGE], [LENGTH, SYMBOLS])

    @pytest.fixture
    def others(self):
        return [
            ValidationTransform([URL], [LENGTH, SYMBOLS]),
            ValidationTransform([URL, replace(LANGUAGE, is_nullable=True)], [LENGTH, SYMBOLS]),
            ValidationTransform([URL, LANGUAGE], [SYMBOLS]),
            ValidationTransform([URL, LANGUAGE], [replace(LENGTH, high=2001), SYMBOLS]),
        ]

    @pytest.fixture
    def rebuild(self):
        return (
            "from holdfast.adapters.transform.field_rules import FieldRule, FieldRules\n"
            "from holdfast.adapters.transform.validation import OutlierBounds, ValidationTransform\n"
            "pattern = FieldRule('pattern', '^https?://', 'reject')\n"
            "fields = [\n"
            "    FieldRules('lang', (FieldRule('one_of', ['en', 'de'], 'stop'),)),\n"
            "    FieldRules('url', (FieldRule('missing', None, 'warn'), pattern)),\n"
            "]\n"
            "bounds = [OutlierBounds('symbols', None, 0.5, 'warn'), OutlierBounds('length', 3, 2000, 'reject')]\n"
            "transform = ValidationTransform(fields, bounds)\n"
        )
