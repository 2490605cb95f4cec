"""Ports, the interfaces that the core requires: one abstract class a file, with its whole promise in the docstring."""
