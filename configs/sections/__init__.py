"""The sections of the settings, one file a concern, named as on the command line."""
