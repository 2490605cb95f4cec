import os
import signal

import pytest
from hypothesis import settings

# tiny models gain nothing from threads, and threads that wait for busy cores make a step eighty times as slow
os.environ.setdefault("OMP_NUM_THREADS", "1")

# how long an example takes is the host's affair: one that waited for a busy core is no flaw of what it tries
settings.register_profile("any host", deadline=None)
settings.load_profile("any host")

# under nohup each process that a test starts would ignore it too, and Python does not hear what it ignores
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest.register_assert_rewrite("holdfast.ports.testing")
