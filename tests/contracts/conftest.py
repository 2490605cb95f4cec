import pytest


def pytest_collection_modifyitems(items):
    """Leave what starts another process to the slow suite: it imports whole libraries again, for each adapter."""
    for item in items:
        if item.path.parent.name == "contracts" and item.name.startswith("test_another_process"):
            item.add_marker(pytest.mark.slow)
