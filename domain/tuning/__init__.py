"""Rules of a hyperparameter search: its space, its trials, and the learning-rate range test."""
