"""What the core asks of the world: one abstract class a file, its whole promise in the docstring."""
