"""How a model is trained: answers to ``holdfast.ports.optimizer``."""
