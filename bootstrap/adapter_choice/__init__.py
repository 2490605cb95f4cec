"""The adapters of each port, by the kinds of the settings."""
