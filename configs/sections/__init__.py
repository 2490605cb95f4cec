"""The sections of the settings, one file per concern, with the names of the command line."""
