"""How fast a model trains, and in how much memory: Holdfast against a bare PyTorch loop and Hugging Face Trainer."""
