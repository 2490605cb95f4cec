"""Authenticated encryption of files."""
