"""Batches from documents and tokens."""
