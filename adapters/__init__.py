"""Implementations of the ports: ``<port>.kind: <kind>`` of the settings chooses ``adapters/<port>/<kind>.py``."""
