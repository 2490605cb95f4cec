"""The fifth stage: the model with its optimizer, and what evaluates it."""
