"""Faults that are put into a short run of a user's configuration, to see whether it survives them."""
