"""The command line: parsers and actions."""
