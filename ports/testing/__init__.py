"""Contract suites: a class of tests for each port, a test for each promise; adapters of other packages use them too."""
