"""The use cases of a training run, on domain and ports alone; ``python -m application`` is the command line."""
