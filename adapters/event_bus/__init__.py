"""Adapters of the port ``EventBus``: they deliver events to handlers."""
