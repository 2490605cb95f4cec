"""What is trained: answers to ``holdfast.ports.model_factory``."""
