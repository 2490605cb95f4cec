"""Adapters of the port ``ResourceProbe``: they measure the resources of the machine in use."""
