"""The update rules that engines train with, as parameter groups and torch optimizers."""
