"""Bases for wrappers: each forwards every method of its port to ``inner``, and a wrapper overrides some of them."""
