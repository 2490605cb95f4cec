"""What several adapters need; nothing here knows a port's adapter."""
