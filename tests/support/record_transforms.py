"""Verdicts of record transforms in a form that is easy to compare."""

from __future__ import annotations

from holdfast.ports.transform import Dropped, Record


def judged(transform, text):
    """Return the text that ``transform`` gives for one record, or the reason why it drops the record."""
    [result] = transform.apply([Record(text)])
    return result.reason if isinstance(result, Dropped) else result.text
