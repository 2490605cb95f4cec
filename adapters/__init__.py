"""Answers to the ports: ``adapters/<port>/<kind>.py`` is what the configuration calls ``<port>.kind: <kind>``."""
