"""Tests of a user's configuration by short runs with injected faults."""
