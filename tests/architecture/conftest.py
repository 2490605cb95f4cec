import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def _no_collections():
    """Keep the collector away from the syntax trees, which stay: it takes five times as long as to parse them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()
