"""How a model is trained: answers to ``ports.optimizer``."""
