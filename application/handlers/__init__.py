"""Handlers of events; each gets ports and the inbox, never the loop."""
