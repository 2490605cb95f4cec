"""The data plane against its peers: `python -m benchmarks.data`."""
