"""The folder of a run: layout, lock, records."""
