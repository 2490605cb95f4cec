"""Policies about the resources of the machine."""
