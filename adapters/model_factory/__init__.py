"""What is trained: answers to ``ports.model_factory``."""
