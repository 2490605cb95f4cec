"""The use cases of a training run, built only on domain and ports; ``python -m application`` is the command line."""
