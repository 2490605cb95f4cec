"""Ledgers: records of the documents that runs have read."""
