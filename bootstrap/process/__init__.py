"""The process: exit codes, signals, environment, launching, supervision."""
