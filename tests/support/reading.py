"""All that a data source gives."""

from __future__ import annotations

from holdfast.ports.data_source import Rejected


def read_all(source):
    """Return what the units of ``source`` hold, one behind the other."""
    return [found for unit in source.units() for found in source.read(unit)]


def texts_of(source):
    """Return the texts of ``source``, of which nothing is rejected."""
    found = read_all(source)
    assert not [bad.reason for bad in found if isinstance(bad, Rejected)]
    return [document.text for document in found]
