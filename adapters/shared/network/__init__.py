"""Requests to other machines: retries, the hub, ranks that are lost."""
