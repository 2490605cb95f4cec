"""What the machine has left: adapters of ``ports.resource_probe``."""
