"""The typed settings of a run, the layers they come from, and ready-made YAML files."""
