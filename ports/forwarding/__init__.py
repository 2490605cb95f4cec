"""Base classes for wrappers: each forwards all methods of its port to ``inner``; a wrapper overrides some of them."""
