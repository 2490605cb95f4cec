import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# tiny models gain nothing from threads, and threads that wait for busy cores make a step eighty times as slow
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow example says that the host is busy, not that the code is wrong.
# Several classes inherit the examples of one contract suite, each for its own adapter: that is the suite's purpose.
settings.register_profile("any host", deadline=None, suppress_health_check=[HealthCheck.differing_executors])
settings.load_profile("any host")

# under nohup each process that a test starts would ignore it too, and Python does not hear what it ignores
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite("holdfast.ports.testing")
