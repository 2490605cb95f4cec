"""Contract suites: a class of tests for each port, a test for each promise; adapters of other packages use them too."""

import pytest

pytest.register_assert_rewrite(__name__)  # so that a promise that is broken shows the two values that differ
