import shutil

import pytest

from tests.support.forked_runs import scratch, start_forked_runs


@pytest.fixture(scope="session")
def runs():
    """Return real runs in the children of one process; it takes some seconds to start, once."""
    home = scratch("runs")
    started = start_forked_runs(home)
    yield started
    started.process.communicate()
    shutil.rmtree(home)


@pytest.fixture
def home(request):
    """Return a folder in which syncing costs nothing."""
    place = scratch("home")
    yield place
    shutil.rmtree(place)
