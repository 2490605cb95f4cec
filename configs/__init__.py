"""What a run is told: the typed settings, the layers they come from, and ready-made YAML files."""
