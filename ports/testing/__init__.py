"""Contract suites: one class of tests a port, a test a promise; adapters from outside run them too."""
