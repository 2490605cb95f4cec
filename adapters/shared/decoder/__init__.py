"""A decoder of our own: its shape, its network, and how both are written for Hugging Face."""
