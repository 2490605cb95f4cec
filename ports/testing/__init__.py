"""Contract suites: one class of tests for each port, one test for each promise; also for adapters of other packages."""
