import os

import pytest

# tiny models gain nothing from threads, and threads that wait for busy cores make a step eighty times as slow
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("ports.testing")
