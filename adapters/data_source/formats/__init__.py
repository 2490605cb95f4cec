"""Readers of file formats: each turns the bytes of a file into documents."""
