"""Adapters and use cases put together from the settings."""
