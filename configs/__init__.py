"""The typed settings of a run, the layers that set them, and ready-made YAML files."""
