"""A tamper-evident audit log: each line names the hash of the line before it."""
