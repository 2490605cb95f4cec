"""Process groups: the processes that train together."""
