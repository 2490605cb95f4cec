"""Commands about a run that do not train."""
