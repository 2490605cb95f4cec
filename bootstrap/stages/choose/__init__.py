"""The second stage: what the settings leave to this machine."""
