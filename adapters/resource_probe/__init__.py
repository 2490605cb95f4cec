"""What the machine has left: adapters of ``holdfast.ports.resource_probe``."""
