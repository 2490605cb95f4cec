"""Adapters of the port ``ProcessGroup``: the processes that train together."""
