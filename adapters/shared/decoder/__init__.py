"""The project's own decoder: its shape, its network, and both in Hugging Face's formats."""
