"""Update rules, as parameter groups and torch optimizers."""
