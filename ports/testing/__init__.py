"""Contract suites: a class of tests for each port, a test for each promise; adapters of other packages use them too."""

from pkgutil import iter_modules

import pytest

# so that a promise that is broken shows the values that differ
pytest.register_assert_rewrite(*(module.name for module in iter_modules(__path__, f"{__name__}.")))
