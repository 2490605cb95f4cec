"""Adapters of the port ``Tokenizer``."""
