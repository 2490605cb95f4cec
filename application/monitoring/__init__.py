"""Monitors in threads of their own."""
