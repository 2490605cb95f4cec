"""Ports, the interfaces that the core requires: one abstract class per file, its whole contract in the docstring."""
