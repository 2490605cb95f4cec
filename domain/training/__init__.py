"""Steps, budgets, schedules and sizes of a run."""
